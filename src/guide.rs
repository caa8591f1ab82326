//! The guide: how to do with the library what most people come for, chapter by chapter.
//!
//! | chapter | what it shows |
//! |---|---|
//! | [`your_own_model`] | a struct of layers: train it, save it, use it |
//! | [`your_own_layer`] | parameters under module paths, and a check of the gradients |
//! | [`read_the_ir`] | what became of a program: graph, passes, kernels, memory |
//!
//! The guide of the crate `kernfusion-lm` trains a GPT on a text, and puts it into a program without the compiler.
//! All code of the guides is compiled and run by `cargo test`. The [front page](crate) shows the smallest whole program.

#[doc = include_str!("guide/your_own_model.md")]
pub mod your_own_model {}

#[doc = include_str!("guide/your_own_layer.md")]
pub mod your_own_layer {}

#[doc = include_str!("guide/read_the_ir.md")]
pub mod read_the_ir {}
