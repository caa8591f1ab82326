//! Choosing one form for each value: the cheapest program in the e-graph that anyone here can find.
//!
//! A value that two others share is paid once. Minimal cost under sharing is NP-hard, so this is greedy: bottom-up each class takes the form whose
//! whole cone, shared parts counted once, is cheapest; then single classes, and groups of classes that would share a
//! new value, change their form as long as the whole program becomes cheaper. The search starts from the greedy choice and from the original program, so
//! its result never costs more than the original.

use super::cost::{self, Reach, Reads};
use super::language::{Head, Term, Terms};
use egg::Id;
use kernfusion_ir::samples::Draws;
use std::collections::BTreeMap;

/// The most often that all forms are tried again.
const SWEEPS: usize = 8;
/// A change must save this part of the whole.
const GAIN: f64 = 1e-12;

/// Which program of an e-graph is taken. All of them must mean the same, which is what the others than the cheapest are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pick {
    /// The cheapest that is found.
    Cheapest,
    /// The dearest that is found by changing one value at a time.
    Dearest,
    /// Forms at random, by this seed.
    Random(u64),
}

/// A form of a value.
struct Form {
    term: Term,
    operands: Vec<usize>,
    cost: f64,
    reach: Reach,
    reads: Reads,
}

/// A value with its forms.
struct Class {
    forms: Vec<Form>,
    access: f64,
}

/// The e-graph as tables, classes by number.
pub(super) struct Extraction {
    classes: Vec<Class>,
    numbers: BTreeMap<Id, usize>,
    roots: Vec<usize>,
}

/// The number of the chosen form of each class.
pub(super) type Selection = Vec<usize>;

impl Extraction {
    /// Prepares to extract `roots`. A value that is there, and of which it is not known how it was computed, has no other form: what is computed of
    /// others that equals it was computed of itself, as x/w · w was, which has rounding of its own, and no number where w is 0.
    pub(super) fn new(terms: &Terms, roots: &[Id], defined: &[usize]) -> Self {
        let is_given = |term: &Term| matches!(term.head, Head::Leaf(leaf) if !defined.contains(&leaf));
        let mut ids: Vec<_> = terms.classes().map(|class| class.id).collect();
        ids.sort_unstable();
        let numbers: BTreeMap<_, _> = ids.iter().enumerate().map(|(number, &id)| (id, number)).collect();
        let form = |term: &Term, id: Id| {
            let operands = term.operands.iter().map(|&operand| numbers[&terms.find(operand)]).collect();
            let types: Vec<_> = term.operands.iter().map(|&operand| &terms[operand].data.ty).collect();
            let ty = &terms[id].data.ty;
            let (cost, reach, reads) = match &term.head {
                Head::Leaf(_) => (cost::access(ty), Reach::Settled, Reads::Nothing),
                Head::Op(op) => (cost::cost(op, &types, ty), cost::reach(op), cost::reads(op)),
            };
            Form { term: term.clone(), operands, cost, reach, reads }
        };
        let class = |&id: &Id| {
            let mut terms_of: Vec<_> = terms[id].nodes.iter().collect();
            terms_of.sort();
            if terms_of.iter().any(|term| is_given(term)) {
                terms_of.retain(|term| is_given(term));
            }
            let forms = terms_of.into_iter().map(|term| form(term, id)).collect();
            Class { forms, access: cost::access(&terms[id].data.ty) }
        };
        let classes = ids.iter().map(class).collect();
        let roots = roots.iter().map(|&root| numbers[&terms.find(root)]).collect();
        Extraction { classes, numbers, roots }
    }

    /// The number of a class.
    pub(super) fn number(&self, terms: &Terms, id: Id) -> usize {
        self.numbers[&terms.find(id)]
    }

    /// The number of forms of each class.
    #[cfg(test)]
    pub(super) fn forms(&self) -> Vec<usize> {
        self.classes.iter().map(|class| class.forms.len()).collect()
    }

    /// The chosen term of a class and its operands by number.
    pub(super) fn chosen(&self, choice: &Selection, class: usize) -> (&Term, &[usize]) {
        let form = &self.classes[class].forms[choice[class]];
        (&form.term, &form.operands)
    }

    /// The choice that is the original program, given its terms: for each class its number, if the program has it as that, or the first
    /// term in it.
    pub(super) fn original(&self, terms: &Terms, program: &[(Id, Term)]) -> Selection {
        let mut choice = self.greedy();
        let mut set = vec![false; self.classes.len()];
        for (id, term) in program {
            let class = self.number(terms, *id);
            let canonical = Term {
                head: term.head.clone(),
                operands: term.operands.iter().map(|&operand| terms.find(operand)).collect(),
            };
            let found = self.classes[class].forms.iter().position(|form| form.term == canonical);
            let wanted = |&form: &usize| !set[class] || self.is_number(&choice, class, form);
            if let Some(form) = found.filter(wanted) {
                choice[class] = form;
                set[class] = true;
            }
        }
        choice
    }

    /// A choice, starting from the original one; its cost.
    pub(super) fn picked(&self, original: Selection, pick: Pick) -> (Selection, f64) {
        let mut draws = match pick {
            Pick::Cheapest => return self.best(original),
            Pick::Dearest => None,
            Pick::Random(seed) => Some(Draws::new(seed)),
        };
        let mut choice = original;
        // A number is written as that and nothing else: what it was folded from is as much only after rounding.
        let numbers: Vec<_> = (0..self.classes.len()).map(|class| self.number_form(class)).collect();
        choice.iter_mut().zip(&numbers).for_each(|(form, number)| *form = number.unwrap_or(*form));
        let mut cost = self.cost(&choice).expect("a program has no cycle");
        for class in (0..self.classes.len()).filter(|&class| numbers[class].is_none()) {
            for form in 0..self.classes[class].forms.len() {
                let before = std::mem::replace(&mut choice[class], form);
                let mut wanted = |new: f64| draws.as_mut().map_or(new > cost, |draws| draws.below(2) == 0);
                match self.cost(&choice).filter(|&new| wanted(new)) {
                    Some(new) => cost = new,
                    None => choice[class] = before,
                }
            }
        }
        (choice, cost)
    }

    /// The form of a class that is a number, in one element or in all of them.
    fn number_form(&self, class: usize) -> Option<usize> {
        let constant =
            |class: usize| self.classes[class].forms.iter().position(|form| form.term.name() == "constant");
        let is_spread = |form: &Form| {
            form.term.name() == "broadcast"
                && form.operands.iter().all(|&operand| constant(operand).is_some())
        };
        constant(class).or_else(|| self.classes[class].forms.iter().position(is_spread))
    }

    /// Whether a form is the number that the class is, written as that.
    fn is_number(&self, choice: &Selection, class: usize, form: usize) -> bool {
        let operands = &self.classes[class].forms[form].operands;
        self.number_form(class) == Some(form)
            && operands.iter().all(|&operand| self.number_form(operand) == Some(choice[operand]))
    }

    /// The cheapest choice that is found, starting from the original one; its cost.
    fn best(&self, original: Selection) -> (Selection, f64) {
        let before = self.cost(&original).expect("a program has no cycle");
        let mut best = (original.clone(), before);
        for start in [self.greedy(), original.clone()] {
            let (mut choice, _) = self.improved(start);
            // A number of the program stays one: what has its value is as much only after rounding.
            for class in (0..choice.len()).filter(|&class| self.is_number(&original, class, original[class]))
            {
                choice[class] = original[class];
            }
            if let Some(cost) = self.cost(&choice).filter(|&cost| cost < best.1 * (1.0 - GAIN)) {
                best = (choice, cost);
            }
        }
        best
    }

    /// Each class takes the form whose cone costs least, its operands' choices being fixed.
    fn greedy(&self) -> Selection {
        let (count, words) = (self.classes.len(), self.classes.len().div_ceil(64));
        let mut choice = vec![0; count];
        let mut best = vec![f64::INFINITY; count];
        let mut cones: Vec<Vec<u64>> = vec![vec![]; count];
        let own = |choice: &Selection, class: usize| self.classes[class].forms[choice[class]].cost;
        for _ in 0..SWEEPS {
            let mut changed = false;
            for class in 0..count {
                for (number, form) in self.classes[class].forms.iter().enumerate() {
                    if form.operands.iter().any(|&operand| best[operand].is_infinite()) {
                        continue;
                    }
                    let mut cone = vec![0; words];
                    for &operand in &form.operands {
                        cone.iter_mut().zip(&cones[operand]).for_each(|(word, other)| *word |= other);
                    }
                    if cone[class / 64] >> (class % 64) & 1 == 1 {
                        continue;
                    }
                    let cost = form.cost + members(&cone).map(|member| own(&choice, member)).sum::<f64>();
                    if cost < best[class] * (1.0 - GAIN) {
                        cone[class / 64] |= 1 << (class % 64);
                        (best[class], choice[class], cones[class]) = (cost, number, cone);
                        changed = true;
                    }
                }
            }
            if !changed {
                break;
            }
        }
        choice
    }

    /// The cost of a program; `None` if it has a cycle.
    pub(super) fn cost(&self, choice: &Selection) -> Option<f64> {
        let order = self.order(choice)?;
        let mut paid = vec![false; self.classes.len()];
        let mut total = 0.0;
        for class in order {
            let form = &self.classes[class].forms[choice[class]];
            total += form.cost;
            for &operand in &form.operands {
                total += match form.reads {
                    Reads::Nothing => 0.0,
                    Reads::Elements => self.turning(choice, operand, &mut paid),
                    Reads::Memory => self.writing(choice, operand, &mut paid),
                };
            }
        }
        total += self.roots.iter().map(|&root| self.writing(choice, root, &mut paid)).sum::<f64>();
        Some(total)
    }

    /// Seconds to write what a value is a view of, unless it lies in memory or has been paid for.
    fn writing(&self, choice: &Selection, class: usize, paid: &mut [bool]) -> f64 {
        let base = self.base(choice, class);
        let form = &self.classes[base].forms[choice[base]];
        let new = form.reach == Reach::Fused && !std::mem::replace(&mut paid[base], true);
        if new { self.classes[base].access } else { 0.0 }
    }

    /// Seconds for what stands between a value and an op that reads its elements in its own order: after a permutation they
    /// are computed in another order, and an op on a part of a product is no epilogue of it.
    fn turning(&self, choice: &Selection, class: usize, paid: &mut [bool]) -> f64 {
        let base = self.base(choice, class);
        let product = self.classes[base].forms[choice[base]].reads == Reads::Memory;
        let (mut total, mut at) = (0.0, class);
        while at != base {
            let form = &self.classes[at].forms[choice[at]];
            let price = match form.term.name() {
                "permute" => 1.0,
                "slice" if product => 2.0,
                _ => 0.0,
            };
            if price > 0.0 && !std::mem::replace(&mut paid[at], true) {
                total += price * self.classes[at].access;
            }
            at = form.operands[0];
        }
        total
    }

    /// What a chain of views is a view of.
    fn base(&self, choice: &Selection, mut class: usize) -> usize {
        loop {
            let form = &self.classes[class].forms[choice[class]];
            if form.reach != Reach::View {
                return class;
            }
            class = form.operands[0];
        }
    }

    /// The classes of a program, operands first; `None` if it has a cycle.
    pub(super) fn order(&self, choice: &Selection) -> Option<Vec<usize>> {
        const NEW: u8 = 0;
        const OPEN: u8 = 1;
        const DONE: u8 = 2;
        let mut state = vec![NEW; self.classes.len()];
        let mut order = Vec::new();
        let mut stack = Vec::new();
        for &root in &self.roots {
            if state[root] == NEW {
                state[root] = OPEN;
                stack.push((root, 0));
            }
            while let Some((class, next)) = stack.pop() {
                let operands = &self.classes[class].forms[choice[class]].operands;
                if let Some(&operand) = operands.get(next) {
                    stack.push((class, next + 1));
                    match state[operand] {
                        NEW => {
                            state[operand] = OPEN;
                            stack.push((operand, 0));
                        }
                        OPEN => return None,
                        _ => {}
                    }
                } else {
                    state[class] = DONE;
                    order.push(class);
                }
            }
        }
        Some(order)
    }

    /// Changes single classes and groups while that makes the program cheaper.
    fn improved(&self, mut choice: Selection) -> (Selection, f64) {
        let Some(mut cost) = self.cost(&choice) else { return (choice, f64::INFINITY) };
        let groups = self.groups();
        for _ in 0..SWEEPS {
            let before = cost;
            for group in &groups {
                self.try_change(&mut choice, &mut cost, group);
            }
            for class in self.order(&choice).expect("no change makes a cycle") {
                for form in 0..self.classes[class].forms.len() {
                    if form != choice[class] {
                        self.try_change(&mut choice, &mut cost, &[(class, form)]);
                    }
                }
            }
            if cost >= before {
                break;
            }
        }
        (choice, cost)
    }

    fn try_change(&self, choice: &mut Selection, cost: &mut f64, changes: &[(usize, usize)]) {
        let swap = |choice: &mut Selection, changes: &[(usize, usize)]| -> Vec<(usize, usize)> {
            changes
                .iter()
                .map(|&(class, form)| (class, std::mem::replace(&mut choice[class], form)))
                .collect()
        };
        let undo = swap(choice, changes);
        match self.cost(choice) {
            Some(new) if new < *cost * (1.0 - GAIN) => *cost = new,
            _ => {
                swap(choice, &undo);
            }
        }
    }

    /// Parts of one value: classes that may be views of the same class, each with that form.
    fn groups(&self) -> Vec<Vec<(usize, usize)>> {
        let mut parts: BTreeMap<usize, Vec<(usize, usize)>> = BTreeMap::new();
        for (class, forms) in self.classes.iter().enumerate() {
            for (number, form) in forms.forms.iter().enumerate() {
                if form.term.name() == "slice" {
                    parts.entry(form.operands[0]).or_default().push((class, number));
                }
            }
        }
        let mut groups: Vec<_> = parts.into_values().filter(|group| group.len() > 1).collect();
        groups.iter_mut().for_each(|group| group.dedup_by_key(|part| part.0));
        groups
    }
}

/// The numbers in a set of bits.
fn members(set: &[u64]) -> impl Iterator<Item = usize> {
    set.iter().enumerate().flat_map(|(word, &bits)| {
        std::iter::successors(Some(bits), |bits| Some(bits & bits.wrapping_sub(1)))
            .take_while(|&bits| bits != 0)
            .map(move |bits| word * 64 + bits.trailing_zeros() as usize)
    })
}
