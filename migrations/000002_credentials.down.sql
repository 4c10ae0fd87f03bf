DROP TABLE admin_tokens, service_tokens, api_keys;
