//! What the import of models must do.

mod architectures;
mod corrupt;
mod fixture;
mod page;
