"""Generated from the .proto files beside this one by `make protos`; do not edit the generated files."""
