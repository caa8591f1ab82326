//! Where a value comes from: the user's line, the module path under which it was traced, and, if someone asked, which nodes
//! of an earlier form of the program it stands for.

use crate::ValueId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// A place in the user's source.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Location {
    /// The file's path, as the compiler of that file knew it.
    pub file: Arc<str>,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
}

impl From<&std::panic::Location<'_>> for Location {
    fn from(place: &std::panic::Location<'_>) -> Self {
        Location { file: place.file().into(), line: place.line(), column: place.column() }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// Location and scope of a value. Autodiff, simplification and fusion carry it on.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Origin {
    /// The user's line, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub location: Option<Location>,
    /// Module path such as `blocks.3.attn.qkv`; empty at the top.
    pub scope: Arc<str>,
    /// What it was in a graph that was marked ([`Graph::mark`](crate::Graph::mark)) before passes changed it; else nothing.
    /// It is in no text form.
    #[serde(skip)]
    pub lineage: Option<Arc<Lineage>>,
}

/// What a value is to an earlier form of its program.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lineage {
    /// Nodes of the marked graph, ascending.
    pub sources: Vec<ValueId>,
    /// Whether it only helps to compute its sources, instead of having their value.
    pub helps: bool,
    /// The rewrite rule that found this way to compute it, if one did.
    pub rule: Option<&'static str>,
}

impl Origin {
    /// An origin from its parts.
    pub fn new(location: Option<Location>, scope: impl Into<Arc<str>>) -> Self {
        Origin { location, scope: scope.into(), lineage: None }
    }

    /// Whether both are of one line and one module.
    pub fn is_beside(&self, other: &Origin) -> bool {
        self.location == other.location && self.scope == other.scope
    }

    /// The nodes of the marked graph whose value it has, or for whose sake it is computed; none if no graph was marked.
    pub fn sources(&self) -> &[ValueId] {
        self.lineage.as_deref().map_or(&[], |lineage| &lineage.sources)
    }

    /// Whether it has the value of a node of the marked graph.
    pub fn stands_for(&self, source: ValueId) -> bool {
        self.lineage.as_ref().is_some_and(|lineage| !lineage.helps && lineage.sources.contains(&source))
    }

    /// The rewrite rule that found this way to compute the value, if one did and a graph was marked.
    pub fn rule(&self) -> Option<&'static str> {
        self.lineage.as_ref()?.rule
    }

    /// The same place, found by this rule; nothing changes unless a graph was marked.
    pub fn found_by(&self, rule: &'static str) -> Self {
        self.with(|lineage| lineage.rule = Some(rule))
    }

    /// The same place, of a value that only helps; nothing changes unless a graph was marked.
    pub fn helping(&self) -> Self {
        self.with(|lineage| lineage.helps = true)
    }

    fn with(&self, change: impl FnOnce(&mut Lineage)) -> Self {
        let mut origin = self.clone();
        if let Some(lineage) = &mut origin.lineage {
            change(Arc::make_mut(lineage));
        }
        origin
    }

    /// Says that the value also has that of another one, which had the value of its sources.
    pub(crate) fn absorb(&mut self, other: &Origin) {
        if let (Some(own), Some(other)) = (&mut self.lineage, &other.lineage)
            && !Arc::ptr_eq(own, other)
            && !other.helps
        {
            let own = Arc::make_mut(own);
            if std::mem::take(&mut own.helps) {
                own.sources.clear();
            }
            own.sources.extend(&other.sources);
            own.sources.sort_unstable();
            own.sources.dedup();
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(location) = &self.location {
            write!(f, "\n  at {location}")?;
        }
        if !self.scope.is_empty() {
            write!(f, "\n  in {}", self.scope)?;
        }
        Ok(())
    }
}
