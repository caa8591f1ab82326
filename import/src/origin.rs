//! Where a node comes from, read from what the archive records.

use crate::error::Place;
use crate::schema::Metadata;
use kernfusion_ir::Location;

impl Metadata {
    /// The module and the line.
    pub(crate) fn place(&self) -> Place {
        let line = self.line().map(|Location { file, line, .. }| format!("{file}:{line}"));
        Place { module: self.module(), line: line.unwrap_or_default() }
    }

    /// The path of the innermost module, in the spelling of parameters: `L['self'].h[0].attn` is `h.0.attn`.
    pub(crate) fn module(&self) -> String {
        let innermost = self.nn_module_stack.rsplit(';').next().unwrap_or_default();
        let path = innermost.split(',').nth(1).unwrap_or_default();
        let path = path.strip_prefix("L['self']").unwrap_or(path);
        let path = path.strip_prefix("L__self__").unwrap_or(path).replace("['", ".").replace("']", "");
        let path = path.replace('[', ".").replace(']', "");
        path.trim_start_matches('.').into()
    }

    /// The innermost line of the traceback. Of an installed package, its path within the packages.
    pub(crate) fn line(&self) -> Option<Location> {
        let (_, last) = self.stack_trace.rsplit_once("File \"")?;
        let (file, rest) = last.split_once("\", line ")?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let file = file.rsplit_once("site-packages/").map_or(file, |(_, file)| file);
        Some(Location { file: file.into(), line: rest[..digits].parse().ok()?, column: 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_and_line_are_those_that_the_archive_records() {
        let trace = "  File \"/home/a/run.py\", line 3, in forward\n    y = f(x)\n  File \"/v/lib/site-packages/p/m.py\", line 127, in f\n    return x\n";
        let metadata = |stack: &str, modules: &str| Metadata {
            stack_trace: stack.into(),
            nn_module_stack: modules.into(),
        };
        let place = metadata(trace, "L__self__,,p.M;L__self___h,L['self'].h,p.L;_h_0,h.0.attn,p.A").place();
        assert_eq!(place, Place { module: "h.0.attn".into(), line: "p/m.py:127".into() });
        assert_eq!(metadata("", "a,L['self'].h[0]['x'].norm,T").module(), "h.0.x.norm");
        for stack in
            ["", "File \"", "File \"a\", line ", "File \"a\", line 99999999999, in f", "File \"a, line 1"]
        {
            assert_eq!(metadata(stack, "").place(), Place::default(), "{stack}");
        }
    }
}
