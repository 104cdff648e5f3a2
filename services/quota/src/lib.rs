//! weir-quota
