//! Where texts to train on are kept.

use std::ffi::OsString;
use std::path::PathBuf;

/// The name of Tiny Shakespeare in the [data directory](data_directory).
pub const TINY_SHAKESPEARE_FILE: &str = "tinyshakespeare.txt";

/// The user's directory for texts: `$KERNFUSION_DATA`, else `$XDG_CACHE_HOME/kernfusion`, else
/// `$HOME/.cache/kernfusion`; none if no such variable is set.
pub fn data_directory() -> Option<PathBuf> {
    data_directory_from(|name| std::env::var_os(name))
}

fn data_directory_from(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // The XDG Base Directory Specification has relative paths ignored.
    let cache = path("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    let cache = || cache.or_else(|| path("HOME").map(|home| home.join(".cache")));
    path("KERNFUSION_DATA").or_else(|| cache().map(|cache| cache.join("kernfusion")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_directory_follows_the_environment() {
        let directory = |variables: &[(&str, &str)]| {
            let find = |name: &str| variables.iter().find(|variable| variable.0 == name);
            data_directory_from(|name| find(name).map(|variable| variable.1.into()))
        };
        let home = ("HOME", "/home/ada");
        assert_eq!(directory(&[]), None);
        assert_eq!(directory(&[home]), Some("/home/ada/.cache/kernfusion".into()));
        assert_eq!(directory(&[home, ("XDG_CACHE_HOME", "/cache")]), Some("/cache/kernfusion".into()));
        let ignored = [home, ("XDG_CACHE_HOME", "relative"), ("KERNFUSION_DATA", "")];
        assert_eq!(directory(&ignored), Some("/home/ada/.cache/kernfusion".into()));
        let all = [home, ("XDG_CACHE_HOME", "/cache"), ("KERNFUSION_DATA", "texts")];
        assert_eq!(directory(&all), Some("texts".into()));
    }
}
