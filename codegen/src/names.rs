//! Names in messages.

/// The first `most` names as a sentence has them, and how many more there are: `a, b and 3 more`.
pub fn listed(names: &[impl AsRef<str>], most: usize) -> String {
    let shown = names.len().min(most);
    let mut parts: Vec<String> = names[..shown].iter().map(|name| name.as_ref().to_string()).collect();
    if shown < names.len() {
        parts.push(format!("{} more", names.len() - shown));
    }
    match parts.pop() {
        None => "none".into(),
        Some(last) if parts.is_empty() => last,
        Some(last) => format!("{} and {last}", parts.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::listed;

    #[test]
    fn names_are_cut_to_a_few_and_a_count() {
        let of = |names: &[&str]| listed(names, 2);
        assert_eq!(of(&[]), "none");
        assert_eq!(of(&["a"]), "a");
        assert_eq!(of(&["a", "b"]), "a and b");
        assert_eq!(of(&["a", "b", "c", "d"]), "a, b and 2 more");
    }
}
