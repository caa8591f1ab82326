//! Layers must do what PyTorch does: the same values, the same gradients.
//!
//! The fixture is written by `benches/peers/layer_fixtures.py`, which says what its tensors are. A case is traced once and
//! judged three times: by the reference evaluator in `f64`, in eager mode and compiled.

mod attention;
mod basic;
mod convolutions;
mod judge;
mod methods;
mod mixture;
mod models;
mod recurrent;
