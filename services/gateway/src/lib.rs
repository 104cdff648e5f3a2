//! weir-gateway
