//! Any program without an update by an optimizer, as a function of its inputs: the forward pass of a model from elsewhere.

use super::{Folder, Report, checked_name};
use crate::Result;
use kernfusion::compile::{MemoryStrategy, Target, Tensors, lower};
use kernfusion::trace::Program;
use kernfusion_codegen::States;
use kernfusion_cpu::object::ObjectFile;
use kernfusion_ir::{DType, InputRole, TensorType};
use std::fmt::Write;
use std::path::Path;
use std::time::Instant;

/// A program to be compiled ahead of time as a function: tensors for tensors, in the order of the program's inputs and outputs.
pub struct FunctionAheadOfTime {
    program: Program,
    states: States,
    target: Target,
    name: String,
}

impl FunctionAheadOfTime {
    /// A program with these values of its states.
    ///
    /// # Errors
    /// A state has another type than its value.
    pub fn new(program: Program, states: &Tensors, target: &Target) -> Result<Self> {
        let own = States::new();
        for (id, name, role) in program.graph.inputs() {
            if role == InputRole::State {
                own.ensure(name, &program.graph[id].ty)?;
            }
        }
        let own = own.closed();
        states.iter().try_for_each(|(name, value)| own.set(name, value))?;
        Ok(FunctionAheadOfTime { program, states: own, target: target.clone(), name: "model".into() })
    }

    /// Its name in file names and in code; `model` if none is given.
    ///
    /// # Errors
    /// If it is not made of letters, digits and underscores, or begins with a digit.
    pub fn named(self, name: &str) -> Result<Self> {
        Ok(FunctionAheadOfTime { name: checked_name(name)?, ..self })
    }

    /// Compiles the program and writes the folder, as [`AheadOfTime::write`](super::AheadOfTime::write) does.
    ///
    /// # Errors
    /// As there; or the program has a loop, or states that take each other's values.
    pub fn write(&self, path: &Path, runtime: Option<&Path>, replaces: bool) -> Result<Report> {
        let folder = Folder::create(path, &self.name, replaces)?;
        let start = Instant::now();
        let plan = lower(&self.program.graph, &self.target, MemoryStrategy::NONE)?.program.body;
        let object = ObjectFile::compile_function(&self.name, &plan, self.target.instruction_set()?)?;
        let compile = start.elapsed();
        let inputs = plan.inputs().map(|buffer| (buffer.name.as_str(), &buffer.ty));
        let outputs = plan.graph.outputs.iter().map(|(name, _, ty)| (name.as_str(), ty));
        let header = Header::new(inputs.collect(), outputs.collect());
        let texts = [header.c(include_str!("function.h")), header.rust(include_str!("function.rs.txt"))];
        let written = folder.write(&object, &texts, &self.states, runtime)?;
        Ok(Report { chunks: 1, compile, ..written })
    }
}

/// Tensors with names in code.
struct Header<'a> {
    inputs: Vec<Parameter<'a>>,
    outputs: Vec<Parameter<'a>>,
}

struct Parameter<'a> {
    name: &'a str,
    /// Letters, digits and underscores, and no word of a language.
    identifier: String,
    ty: &'a TensorType,
}

impl<'a> Header<'a> {
    fn new(inputs: Vec<(&'a str, &'a TensorType)>, outputs: Vec<(&'a str, &'a TensorType)>) -> Self {
        Header { inputs: parameters("in", inputs), outputs: parameters("out", outputs) }
    }

    fn c(&self, template: &str) -> String {
        let constant = |it: &Parameter<'_>| {
            let (identifier, elements) = (it.identifier.to_uppercase(), it.ty.elements());
            format!("    /* {}: {} */\n    KF_@NAME@_{identifier} = {elements}", comment(it.name), it.ty)
        };
        let parameter = |it: &Parameter<'_>, constant: &str| {
            format!(", {constant}{} *{}", c_type(it.ty.dtype), it.identifier)
        };
        let all = self.inputs.iter().map(|it| parameter(it, "const "));
        let all = all.chain(self.outputs.iter().map(|it| parameter(it, "")));
        // An empty list is none in C.
        let listed = |all: &[Parameter<'_>]| match all {
            [] => "0".into(),
            all => all.iter().map(|it| it.identifier.clone()).collect::<Vec<_>>().join(", "),
        };
        template
            .replace("@extents@", &self.all(constant).join(",\n"))
            .replace("@types@", &self.types(" *    "))
            .replace("@parameters@", &all.collect::<String>())
            .replace("@inputs@", &listed(&self.inputs))
            .replace("@outputs@", &listed(&self.outputs))
    }

    fn rust(&self, template: &str) -> String {
        let constant = |it: &Parameter<'_>| {
            let (identifier, elements) = (it.identifier.to_uppercase(), it.ty.elements());
            format!(
                "/// Elements of {}: {}.\n#[allow(dead_code)]\npub const {identifier}: usize = {elements};",
                comment(it.name),
                it.ty
            )
        };
        let parameter = |it: &Parameter<'_>, reference: &str| {
            format!("    {}: {reference}[{}],", it.identifier, rust_type(it.ty.dtype))
        };
        let all = self.inputs.iter().map(|it| parameter(it, "&"));
        let all: Vec<_> = all.chain(self.outputs.iter().map(|it| parameter(it, "&mut "))).collect();
        let listed = |all: &[Parameter<'_>], of: &str| {
            all.iter().map(|it| format!("{of}({})", it.identifier)).collect::<Vec<_>>().join(", ")
        };
        template
            .replace("@extents@", &self.all(constant).join("\n"))
            .replace("@types@", &self.types("///    "))
            .replace("@parameters@", &all.join("\n"))
            .replace("@inputs@", &listed(&self.inputs, "bytes_of"))
            .replace("@outputs@", &listed(&self.outputs, "bytes_of_mut"))
    }

    fn all(&self, text: impl Fn(&Parameter<'_>) -> String) -> Vec<String> {
        self.inputs.iter().chain(&self.outputs).map(text).collect()
    }

    /// A line for each output.
    fn types(&self, indent: &str) -> String {
        let line = |it: &Parameter<'_>| format!("{indent}{}: {}", it.identifier, it.ty);
        self.outputs.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// Tensors with identifiers that differ. What stands in front of the name keeps them apart from words of C and Rust.
fn parameters<'a>(prefix: &str, tensors: Vec<(&'a str, &'a TensorType)>) -> Vec<Parameter<'a>> {
    let mut all: Vec<Parameter<'a>> = vec![];
    for (name, ty) in tensors {
        let letters =
            name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' });
        let mut identifier = format!("{prefix}_{}", letters.collect::<String>());
        let number = all.len();
        if all.iter().any(|other| other.identifier == identifier) {
            write!(identifier, "__{number}").expect("a string takes all");
        }
        all.push(Parameter { name, identifier, ty });
    }
    all
}

/// A name that ends no comment.
fn comment(name: &str) -> String {
    name.replace("*/", "* /").replace(|c: char| c.is_control(), " ")
}

fn c_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "float",
        DType::F64 => "double",
        DType::BF16 | DType::F16 => "uint16_t",
        DType::I32 => "int32_t",
        DType::U32 => "uint32_t",
        DType::I8 => "int8_t",
        DType::Bool => "uint8_t",
    }
}

fn rust_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32",
        DType::F64 => "f64",
        DType::BF16 | DType::F16 => "u16",
        DType::I32 => "i32",
        DType::U32 => "u32",
        DType::I8 => "i8",
        DType::Bool => "u8",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_identifiers_that_differ() {
        let ty = TensorType::new(DType::F32, [2, 3]);
        let found = parameters("in", vec![("a.b", &ty), ("a_b", &ty), ("A b", &ty), ("int", &ty)]);
        let found: Vec<_> = found.iter().map(|it| it.identifier.as_str()).collect();
        assert_eq!(found, ["in_a_b", "in_a_b__1", "in_a_b__2", "in_int"]);
        assert_eq!(comment("a */ b\n"), "a * / b ");
    }
}
