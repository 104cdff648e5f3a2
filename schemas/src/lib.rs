//! weir-schemas
