// Shows openapi.yaml of the server that sent this page, and asks no other host.
SwaggerUIBundle({
  url: "openapi.yaml",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
  defaultModelsExpandDepth: 0,
  tryItOutEnabled: false,
});
