//! Tests of the intermediate representations from outside.

mod collective;
mod draw;
mod kernel;
mod samples;
mod text;
mod verifier;
