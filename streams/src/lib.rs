//! weir-streams
