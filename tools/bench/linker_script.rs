//! A linker script that places the functions of a cached run next to each other.
//!
//! A page fault maps the 64 KiB around the page. In the default order, the functions of a cached run are spread over
//! the whole program, so half of the program becomes resident.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use kubelet_authenticator_test_support::api_server::{ApiServer, Signer, TOKEN};

use crate::cached_path::{Node, PLUGINS};

/// The script for the plugins in this directory. The plugins must contain their symbols.
pub fn of(programs: &Path) -> String {
    let folder = tempfile::tempdir().unwrap();
    let server = ApiServer::start();
    server.set_signer(Signer::issue_for(Duration::from_secs(365 * 24 * 3600)));
    let node = Node::new(&server, folder.path(), "bench", TOKEN);
    let mut functions = BTreeSet::new();
    for name in PLUGINS {
        let plugin = node.program(name, programs);
        // The first run of the first plugin enrolls the node.
        plugin.time();
        functions.extend(plugin.functions());
    }
    let patterns: BTreeSet<String> = functions
        .iter()
        .filter(|name| !name.starts_with(['0', '(']))
        .map(|name| pattern(name))
        .collect();
    let sections = patterns
        .iter()
        .map(|pattern| format!("    *(.text.{pattern} .text.unlikely.{pattern})\n"));
    format!(
        "/* The functions of a cached run, next to each other: see providers/build.rs. */\n\
         SECTIONS\n{{\n  .text.cached :\n  {{\n{}  }}\n}}\nINSERT BEFORE .text;\n",
        sections.collect::<String>()
    )
}

/// The name without the parts that differ between compilers: the crate hash, the hash of a generic instance, and the
/// copy number.
fn pattern(name: &str) -> String {
    let mut pattern = String::new();
    let mut rest = name;
    while let Some((before, after)) = rest.split_once("17h") {
        let hash = after.find('E').filter(|end| *end == 16);
        pattern += before;
        pattern += if hash.is_some() { "17h*" } else { "17h" };
        rest = &after[hash.unwrap_or(0)..];
    }
    pattern += rest;
    let mut parts = pattern.split("Cs");
    let mut pattern = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once('_') {
            Some((hash, after)) if hash.chars().all(|c| c.is_ascii_alphanumeric()) => {
                pattern += "Cs*_";
                pattern += after;
            }
            _ => {
                pattern += "Cs";
                pattern += part;
            }
        }
    }
    match pattern.rsplit_once('.') {
        Some((name, copy)) if copy.parse::<u32>().is_ok() => format!("{name}*"),
        _ => pattern,
    }
}
