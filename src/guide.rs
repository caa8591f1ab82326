//! The guide: how to do with the library what most people come for, chapter by chapter.
//!
//! | chapter | what it shows |
//! |---|---|
//! | [`quick_start`] | train a GPT on a text, save it, let it write |
//! | [`your_own_model`] | a struct of layers: train it, save it, use it |
//! | [`your_own_layer`] | parameters under module paths, and a check of the gradients |
//! | [`read_the_ir`] | what became of a program: graph, passes, kernels, memory |
//! | [`compile_ahead_of_time`] | a model in a program without the compiler |
//!
//! All code of the guide is compiled and run by `cargo test`. The [front page](crate) shows the smallest whole program.

#[doc = include_str!("guide/quick_start.md")]
pub mod quick_start {}

#[doc = include_str!("guide/your_own_model.md")]
pub mod your_own_model {}

#[doc = include_str!("guide/your_own_layer.md")]
pub mod your_own_layer {}

#[doc = include_str!("guide/read_the_ir.md")]
pub mod read_the_ir {}

#[doc = include_str!("guide/compile_ahead_of_time.md")]
pub mod compile_ahead_of_time {}
