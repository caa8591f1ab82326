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
    /// It was there before: in an input or a state, or it is a constant.
    Given {
        /// The input's or state's name; none of a constant.
        name: Option<String>,
    },
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
            Maker::Given { name: Some(name) } => write!(f, "\"{name}\" was not finite before"),
            Maker::Given { name: None } => f.write_str("the program has it as a constant"),
            Maker::Nowhere => f.write_str(
                "but computed one operation after another (mode eager) the same run is finite; its kernels round elsewhere",
            ),
        }
    }
}

impl std::error::Error for NonFinite {}
