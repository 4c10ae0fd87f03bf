// A dark system gets a dark page: swagger-ui has the colours, and wears them by a class.
const dark = matchMedia("(prefers-color-scheme: dark)");
const dress = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", dress);
dress();

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
