//! weir-migrations
