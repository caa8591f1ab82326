//! What the import of models must do.

mod architectures;
mod corrupt;
mod dropout;
mod fixture;
mod page;
