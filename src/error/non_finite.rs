//! Which operation made the first number that is not finite.

use kernfusion_ir::Origin;
use std::fmt;

/// A run that gave a number that is not finite.
#[derive(Debug, Clone, PartialEq)]
pub struct NonFinite {
    /// The result or state that is not finite.
    pub result: String,
    /// What it has: `NaN` or an infinity.
    pub has: &'static str,
    /// Where it was made.
    pub maker: Maker,
}

/// Where a number that is not finite was made.
#[derive(Debug, Clone, PartialEq)]
pub enum Maker {
    /// An operation made it of numbers that were none of its kind.
    Operation {
        /// The op's name.
        op: &'static str,
        /// What it made: `NaN` or an infinity.
        made: &'static str,
        /// The type of its result.
        ty: String,
        /// Whether it belongs to gradients or updates.
        in_backward: bool,
        /// The largest magnitude among its finite operands.
        largest: f64,
        /// If it made a NaN of infinities: where the first of these was made, if an operation did.
        infinity: Option<Box<Maker>>,
        /// The user's line, and the module.
        origin: Origin,
    },
    /// An input has it.
    Input {
        /// The input's name.
        name: String,
        /// What it has: `NaN` or an infinity.
        has: &'static str,
    },
    /// A state had it before the run.
    State {
        /// The state's name.
        name: String,
        /// What it had: `NaN` or an infinity.
        had: &'static str,
    },
    /// The program has it as a constant.
    Constant,
    /// One operation after another gives finite numbers: the compiled kernels round or order differently.
    Nowhere,
}

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has {}: {}", self.result, self.has, self.maker)
    }
}

impl fmt::Display for Maker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Maker::Operation { op, made, ty, in_backward, largest, infinity, origin } => {
                let half = if *in_backward { " of backward" } else { "" };
                let operands = if infinity.is_some() { "of infinities" } else { "of finite numbers" };
                write!(f, "{op}{half} made {made} {operands} up to {largest:.3e}, {ty}{origin}")?;
                infinity.iter().try_for_each(|infinity| write!(f, "\n  the infinity: {infinity}"))
            }
            Maker::Input { name, has } => write!(f, "input \"{name}\" has {}", with_article(has)),
            Maker::State { name, had } => write!(f, "state \"{name}\" had {} before", with_article(had)),
            Maker::Constant => f.write_str("the program has it as a constant"),
            Maker::Nowhere => f.write_str(
                "but computed one operation after another (mode eager) the same run is finite; its kernels round elsewhere",
            ),
        }
    }
}

fn with_article(number: &'static str) -> &'static str {
    if number == "NaN" { "a NaN" } else { number }
}

impl std::error::Error for NonFinite {}
