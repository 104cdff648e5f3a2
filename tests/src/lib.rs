//! weir-tests
