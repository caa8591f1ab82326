//! Tests of passes from outside.

mod chains;
mod files;
mod fusion;
mod microbatch;
mod properties;
mod simplify;
