"""The files of a gateway: gateway.yaml and its templates, validated; what `gateway init` writes."""
