// Shows openapi.yaml of the server that sent this page, and asks no other host.
SwaggerUIBundle({
  url: "openapi.yaml",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
  defaultModelsExpandDepth: 0,
  tryItOutEnabled: false,
  // What only the admin listener serves can be read here, not tried: that is another origin.
  plugins: [{
    statePlugins: {
      spec: {
        wrapSelectors: {
          allowTryItOutFor: (original) => (state, path, method) =>
            path !== "/metrics" && !path.startsWith("/admin/") && original(state, path, method),
        },
      },
    },
  }],
});
