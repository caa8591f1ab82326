//! What makes a program wrong that breaks a check.

use super::judge::Check;
use super::program::Case;
use crate::bisect::{Pipeline, TOLERANCE, bisect};
use crate::compile::{Mode, Precision, Target};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The pass, rule, fusion or kernel that `bisect` names; `None` where the check does not run the pipeline, or its steps deviate less than
/// `bisect` looks at.
pub fn culprit(program: &Case, check: &Check) -> Option<String> {
    let precision = match check {
        Check::Bf16(Mode::Compiled) => Precision::Bf16,
        Check::Compiled(_)
        | Check::Guarded(Mode::Compiled, _)
        | Check::Microbatches(_)
        | Check::Recompute
        | Check::Passes(_)
        | Check::Kernels => Precision::F32,
        Check::Text
        | Check::Eager
        | Check::Guarded(Mode::Eager, _)
        | Check::Bf16(Mode::Eager)
        | Check::Forms(..)
        | Check::Gradient(_) => return None,
    };
    let pipeline = Pipeline::of(&Target::cpu().precision(precision).threads(2));
    let found =
        catch_unwind(AssertUnwindSafe(|| bisect(&program.graph, &program.inputs, &pipeline, TOLERANCE)));
    let finding = found.ok()?.ok()?.finding?.to_string();
    Some(finding.lines().map(str::trim).collect::<Vec<_>>().join("; "))
}
