//! Tests of the library from outside, one module a subject, in one program: linking takes longer than most of them run.

mod attention;
mod bisect;
mod cuda;
mod findings;
mod finite;
mod layers;
mod learning;
mod microbatch;
mod mixed_precision;
mod preparation;
mod ranks;
mod replay;
mod scan;
mod session;
mod sorting;
mod steps;
mod structure;
