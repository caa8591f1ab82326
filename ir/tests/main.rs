//! Tests of the intermediate representations from outside.

mod draw;
mod kernel;
mod samples;
mod text;
mod verifier;
