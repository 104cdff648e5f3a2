//! weir-stub
