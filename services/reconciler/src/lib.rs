//! weir-reconciler
