//! The text form of a graph (`.kir` files): what dumps show, and what parses back to an equal graph.
//!
//! ```text
//! graph "train" {
//!   %0 = input {name = "x", dtype = i32, shape = [12, 64]} : i32[12,64]
//!   %1 = state {name = "wte.weight", dtype = f32, shape = [65, 128]} : f32[65,128]
//!   %2 = gather %1, %0 {axis = 0} : f32[12,64,128] in "wte" at "src/nn.rs":12:5
//!   # comments run to the end of the line
//!   output "hidden" = %2
//!   update "wte.weight" = %1
//! }
//! ```
//!
//! The grammar, where blanks are free:
//!
//! ```text
//! file      = "graph" string "{" statement* "}"
//! statement = value "=" op [value ("," value)*] [attributes] [":" type] [origin]
//!           | ("output" | "update") string "=" value
//! origin    = ["in" string] ["at" string ":" line ":" column]
//! attributes = "{" [name "=" attribute ("," name "=" attribute)*] "}"
//! attribute = number | "[" [extent ("," extent)*] "]" | word | string | file
//! type      = dtype "[" [extent ("," extent)*] "]"
//! ```
//!
//! A value is `%` and any word; it is printed as its number. Numbers are what Rust prints for `f64` (`inf`, `-inf`
//! and `NaN` included), strings what it prints for `str`. A type that is left out is inferred. A type that is written
//! is taken as it is, and operands may be defined later in the file: such graphs are for the verifier to refuse, or for
//! [`Graph::parse_verified`](crate::Graph::parse_verified), which says in which line they stand. Bodies of loops may stand in each
//! other, [`DEEPEST`] graphs at most.

mod lex;
mod parse;
mod print;

pub(crate) use print::write_graph;

/// How deep graphs may stand in each other, as bodies of loops: deeper than any program, and not as deep as the stack of a thread.
pub const DEEPEST: usize = 64;

/// Why a text is no graph, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
}
