-- One tenant is looked at without reading the keys of all others.
CREATE INDEX keys_of_tenant ON keys (tenant_id);
