//! Extents that each use of a program chooses: names such as `s77`, bound by the shapes of the inputs, and expressions over them.
//!
//! ```text
//! 2*s77 + 1      (s77//8)      Max(1, s77)      Mod(s77, 4)      s77**2
//! ```

use crate::schema::{Graph, Size, TensorMeta};
use crate::weights::stored;
use kernfusion_ir::TensorType;
use std::collections::HashMap;

/// What names of extents are bound to.
pub(crate) struct Sizes<'a> {
    graph: &'a Graph,
    bound: HashMap<String, i64>,
}

/// The deepest nesting of an expression.
const DEEPEST: usize = 64;

impl<'a> Sizes<'a> {
    /// Nothing is bound yet.
    pub(crate) fn new(graph: &'a Graph) -> Self {
        Sizes { graph, bound: HashMap::new() }
    }

    /// Binds the names among the extents of an input to those of a tensor; says what does not fit.
    pub(crate) fn bind(&mut self, meta: &TensorMeta, shape: &[usize]) -> Result<(), String> {
        if meta.sizes.len() != shape.len() {
            return Err(format!("it has {} axes, not {}", shape.len(), meta.sizes.len()));
        }
        for (size, &extent) in meta.sizes.iter().zip(shape) {
            let extent = i64::try_from(extent).map_err(|_| format!("the extent {extent} is too large"))?;
            if let Some(name) = name(size) {
                self.bound.entry(name.into()).or_insert(extent);
            }
        }
        Ok(())
    }

    /// Binds names to numbers; `open` are those that there are, all of which must be bound.
    pub(crate) fn bind_names(&mut self, dims: &[(String, usize)], open: &[&str]) -> Result<(), String> {
        let list = if open.is_empty() { "none".into() } else { open.join(", ") };
        for (name, extent) in dims {
            if !open.contains(&name.as_str()) {
                return Err(format!("the model leaves no extent {name} open (open: {list})"));
            }
            let extent = i64::try_from(*extent).map_err(|_| format!("the extent {extent} is too large"))?;
            self.bound.insert(name.clone(), extent);
        }
        let mut unbound = open.iter().filter(|name| !self.bound.contains_key(**name));
        unbound.next().map_or(Ok(()), |name| {
            Err(format!("the extent {name} is open and needs a number (open: {list})"))
        })
    }

    /// The number that an extent is.
    pub(crate) fn of(&self, size: &Size) -> Result<i64, String> {
        match size {
            Size::Int(number) => Ok(*number),
            Size::Expression(expression) => self.expression(&expression.expr_str),
        }
    }

    /// The number of a name that nodes give to an extent.
    pub(crate) fn value(&self, name: &str) -> Result<i64, String> {
        let size = self.graph.sym_int_values.get(name);
        self.of(size.ok_or_else(|| format!("the archive does not say what the extent {name} is"))?)
    }

    /// The type of a tensor.
    pub(crate) fn tensor_type(&self, meta: &TensorMeta) -> Result<TensorType, String> {
        let extent = |size| {
            let number = self.of(size)?;
            usize::try_from(number).map_err(|_| format!("an extent of {number}"))
        };
        let shape = meta.sizes.iter().map(extent).collect::<Result<Vec<_>, _>>()?;
        let ty = TensorType::new(stored(meta.dtype)?.0, shape);
        ty.fault().map_or(Ok(ty.clone()), |fault| Err(fault.to_string()))
    }

    fn expression(&self, text: &str) -> Result<i64, String> {
        let mut reader = Reader { sizes: self, rest: text, depth: 0 };
        let value = reader.sum().filter(|_| reader.rest.trim_start().is_empty());
        value.ok_or_else(|| format!("the extent {text} cannot be computed"))
    }
}

/// The name that an extent is, if it is one alone.
pub(crate) fn name(size: &Size) -> Option<&str> {
    match size {
        Size::Expression(expression) => {
            let text = expression.expr_str.as_str();
            let is_name = text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(is_word);
            is_name.then_some(text)
        }
        Size::Int(_) => None,
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Reads an expression from the left; nothing where it is no expression or a number is out of range.
struct Reader<'r> {
    sizes: &'r Sizes<'r>,
    rest: &'r str,
    depth: usize,
}

impl Reader<'_> {
    fn takes(&mut self, token: &str) -> bool {
        let rest = self.rest.trim_start().strip_prefix(token);
        rest.is_some_and(|rest| {
            self.rest = rest;
            true
        })
    }

    fn sum(&mut self) -> Option<i64> {
        let mut sum = self.product()?;
        loop {
            if self.takes("+") {
                sum = sum.checked_add(self.product()?)?;
            } else if self.takes("-") {
                sum = sum.checked_sub(self.product()?)?;
            } else {
                return Some(sum);
            }
        }
    }

    fn product(&mut self) -> Option<i64> {
        let mut product = self.power()?;
        loop {
            if self.takes("//") {
                product = floor_quotient(product, self.power()?)?;
            } else if self.takes("*") {
                product = product.checked_mul(self.power()?)?;
            } else {
                return Some(product);
            }
        }
    }

    fn power(&mut self) -> Option<i64> {
        let base = self.operand()?;
        match self.takes("**") {
            true => base.checked_pow(u32::try_from(self.operand()?).ok()?),
            false => Some(base),
        }
    }

    fn operand(&mut self) -> Option<i64> {
        self.depth += 1;
        let operand = if self.depth > DEEPEST { None } else { self.nested_operand() };
        self.depth -= 1;
        operand
    }

    fn nested_operand(&mut self) -> Option<i64> {
        if self.takes("-") {
            return self.operand()?.checked_neg();
        }
        if self.takes("(") {
            return self.sum().filter(|_| self.takes(")"));
        }
        let text = self.rest.trim_start();
        let (word, rest) = text.split_at(text.find(|c| !is_word(c)).unwrap_or(text.len()));
        self.rest = rest;
        match word.parse() {
            Ok(number) => Some(number),
            Err(_) if self.takes("(") => self.function(word),
            Err(_) => self.sizes.bound.get(word).copied(),
        }
    }

    fn function(&mut self, name: &str) -> Option<i64> {
        let mut arguments = vec![self.sum()?];
        while self.takes(",") {
            arguments.push(self.sum()?);
        }
        let arguments = self.takes(")").then_some(arguments)?;
        match (name, arguments.as_slice()) {
            ("Max", all) => all.iter().copied().max(),
            ("Min", all) => all.iter().copied().min(),
            ("FloorDiv" | "CleanDiv" | "IntTrueDiv", &[a, b]) => floor_quotient(a, b),
            ("Mod" | "PythonMod", &[a, b]) if b > 0 => Some(a.rem_euclid(b)),
            _ => None,
        }
    }
}

fn floor_quotient(a: i64, b: i64) -> Option<i64> {
    // Toward minus infinity, as Python divides.
    (b > 0).then(|| a.div_euclid(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Expression;
    use std::collections::BTreeMap;

    #[test]
    fn extents_are_computed_from_those_of_inputs() {
        let graph = Graph { nodes: vec![], tensor_values: BTreeMap::new(), sym_int_values: BTreeMap::new() };
        let size = |text: &str| Size::Expression(Expression { expr_str: text.into() });
        let meta = TensorMeta {
            dtype: 7,
            sizes: vec![size("s77"), Size::Int(4), size("s2")],
            strides: vec![],
            storage_offset: Size::Int(0),
            requires_grad: false,
        };
        let mut sizes = Sizes::new(&graph);
        assert!(sizes.bind(&meta, &[8, 4]).unwrap_err().contains("2 axes, not 3"));
        sizes.bind(&meta, &[10, 4, 3]).unwrap();
        let of = |text: &str| sizes.of(&size(text));
        for (text, expected) in [
            ("s77", 10),
            ("2*s77 + 1", 21),
            ("s77 - s2*s2", 1),
            ("(s77//4)", 2),
            ("-s2//2 + s2**2", 7),
            ("Max(1, s2, s77 - 8)", 3),
            ("Min(s77, 4)*Mod(s77, 4)", 8),
            ("((1 + (s77)))", 11),
        ] {
            assert_eq!(of(text), Ok(expected), "{text}");
        }
        let deep = format!("{}1{}", "(".repeat(1000), ")".repeat(1000));
        let negated = format!("{}1", "-".repeat(100_000));
        for text in [
            "",
            "s3",
            "s77 +",
            "s77/2",
            "s77//0",
            "f(s77)",
            "(s77",
            "99999999999*99999999999",
            "9**99",
            &deep,
            &negated,
        ] {
            assert!(of(text).is_err(), "{text}");
        }
        assert_eq!(sizes.tensor_type(&meta).unwrap().to_string(), "f32[10,4,3]");
    }
}
