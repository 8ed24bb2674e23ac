//! The fields of the kubelet's configuration that the plugin uses.

use std::path::{Path, PathBuf};

use kubelet_attestation::kubeconfig::first_document;
use serde::Deserialize;
use serde_saphyr::DuplicateKeyPolicy;

use super::{folder_contents, read_text};
use crate::failure::{Code, Failure, Invalid};
use crate::machine::Machine;

/// The extension of drop-in files. The kubelet ignores other files.
const EXTENSION: &str = "conf";

/// The maximum depth of drop-in directories.
const MAX_DEPTH: usize = 8;

/// The fields of a `KubeletConfiguration`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Configuration {
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
    rotate_certificates: Option<bool>,
}

/// Returns the provider ID from the last file in `folder` that sets it, or otherwise from the configuration file
/// `config`; `None` if the provider ID is empty, as in the kubelet.
pub(super) fn provider_id(
    machine: &Machine,
    config: Option<&str>,
    folder: Option<&str>,
) -> Result<Option<String>, Failure> {
    let found = last(machine, config, folder, |it| it.provider_id)?;
    Ok(found.filter(|id| !id.is_empty()))
}

/// Whether the configuration makes the kubelet renew its own certificate.
pub(super) fn rotates_certificates(
    machine: &Machine,
    config: Option<&str>,
    folder: Option<&str>,
) -> Result<bool, Failure> {
    let found = last(machine, config, folder, |it| it.rotate_certificates)?;
    Ok(found == Some(true))
}

/// Returns the value from the last of these files that sets the field.
///
/// The kubelet merges the files of the directory into the configuration in the order of their names, including the
/// files in subdirectories.
fn last<T>(
    machine: &Machine,
    config: Option<&str>,
    folder: Option<&str>,
    field: impl Fn(Configuration) -> Option<T>,
) -> Result<Option<T>, Failure> {
    let mut files: Vec<_> = config.map(|file| machine.path(file)).into_iter().collect();
    if let Some(folder) = folder {
        drop_ins(&machine.path(folder), MAX_DEPTH, &mut files)?;
    }
    let mut found = None;
    for (number, file) in files.into_iter().enumerate() {
        // If a key is repeated in the configuration file, the last occurrence takes precedence, and the kubelet only
        // logs a warning. The kubelet does not start if a drop-in contains repeated keys (`LoadIntoJSON` in
        // `pkg/kubelet/kubeletconfig/configfiles`).
        let repeated = if config.is_some() && number == 0 {
            DuplicateKeyPolicy::LastWins
        } else {
            DuplicateKeyPolicy::Error
        };
        if let Some(text) = read_text(&file)? {
            let parsed = parse(&text, repeated).map_err(|why| unusable(&file, &why))?;
            found = parsed.and_then(&field).or(found);
        }
    }
    Ok(found)
}

fn parse(text: &str, repeated: DuplicateKeyPolicy) -> Result<Option<Configuration>, Invalid> {
    // The kubelet ignores all other documents.
    let (text, _) = first_document(text);
    if text.trim().is_empty() {
        return Ok(None);
    }
    let options = serde_saphyr::options! { duplicate_keys: repeated };
    // The parser's error quotes the file, so it is dropped.
    serde_saphyr::from_str_with_options(text, options)
        .map(Some)
        .map_err(|_| Invalid::new("it is not a KubeletConfiguration in YAML"))
}

/// Adds the drop-ins below `folder`, in order.
fn drop_ins(folder: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let paths = folder_contents(folder).map_err(|error| unusable(folder, &error))?;
    for path in paths {
        // Like the kubelet, this function does not follow symbolic links to directories.
        if path.symlink_metadata().is_ok_and(|it| it.is_dir()) {
            if depth > 0 {
                drop_ins(&path, depth - 1, files)?;
            }
        } else if path.extension().is_some_and(|it| it == EXTENSION) {
            files.push(path);
        }
    }
    Ok(())
}

fn unusable(path: &Path, why: &dyn std::error::Error) -> Failure {
    let path = path.display();
    let what = format!("cannot read the kubelet's configuration in {path}");
    let cure = format!("correct {path}: the kubelet cannot start with it");
    Failure::new(Code::Configuration, what, cure).because(why)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const CONFIG: &str = "/var/lib/kubelet/config.yaml";
    const FOLDER: &str = "/etc/kubernetes/kubelet.conf.d";

    fn found(files: &[(&str, &str)], folder: Option<&str>) -> Result<Option<String>, Failure> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        provider_id(&Machine::rooted(root.path()), Some(CONFIG), folder)
    }

    #[test]
    fn the_last_file_with_a_provider_id_takes_precedence() {
        let in_folder = |name: &str| format!("{FOLDER}/{name}");
        let [first, last, below, other] =
            ["10-a.conf", "20-b.conf", "30/c.conf", "40-d.yaml"].map(in_folder);
        let readme = in_folder("README");
        let of = |id: &str| format!("kind: KubeletConfiguration\nproviderID: {id}\n");
        let [one, two, three, none] = ["a://1", "a://2", "a://3", "\"\""].map(of);
        let documents = format!("{one}---\n{two}");
        for (files, expected) in [
            (&[][..], None),
            (&[(CONFIG, "")], None),
            (&[(CONFIG, "kind: KubeletConfiguration")], None),
            (&[(CONFIG, &none)], None),
            (&[(CONFIG, "{\"providerID\": \"a://1\"}")], Some("a://1")),
            (
                &[(CONFIG, "---\n{providerID: a://1}\n---\n")],
                Some("a://1"),
            ),
            (&[(CONFIG, &documents)], Some("a://1")),
            (
                &[(CONFIG, "  # c\n---\nproviderID: a://1\n")],
                Some("a://1"),
            ),
            (&[(CONFIG, &one), (&first, "maxPods: 9")], Some("a://1")),
            (&[(CONFIG, &one), (&first, &none)], None),
            (&[(&last, &two), (&first, &one)], Some("a://2")),
            (&[(&last, &two), (&below, &three)], Some("a://3")),
            (&[(&first, &one), (&other, &two)], Some("a://1")),
        ] {
            let files = [files, &[(&*readme, "")]].concat();
            assert_eq!(
                found(&files, Some(FOLDER)).unwrap().as_deref(),
                expected,
                "{files:?}"
            );
        }
        assert_eq!(found(&[(&first, &one)], None).unwrap(), None);
    }

    #[test]
    fn the_last_of_repeated_keys_counts_as_in_the_kubelet() {
        let text = "providerID: a://1\nmaxPods: 9\nproviderID: a://2\nmaxPods: 8\n\
                    featureGates: {A: true, A: false}\n";
        let found = found(&[(CONFIG, text)], None).unwrap();
        assert_eq!(found.as_deref(), Some("a://2"));
    }

    #[test]
    fn a_drop_in_with_repeated_keys_is_refused_as_in_the_kubelet() {
        let path = format!("{FOLDER}/10-a.conf");
        let text = "providerID: a://1\nproviderID: a://2\n";
        let failure = found(&[(&path, text)], Some(FOLDER)).unwrap_err();
        assert!(failure.what().contains(&path), "{failure}");
    }

    #[test]
    fn an_invalid_configuration_fails_with_its_path() {
        for text in ["providerID: [", "providerID: {}", "providerID"] {
            let failure = found(&[(CONFIG, text)], None).unwrap_err();

            assert_eq!(failure.code(), Code::Configuration);
            assert!(failure.what().contains(CONFIG), "{failure}");
        }
        // A file exists instead of the directory.
        let failure = found(&[(CONFIG, "")], Some(CONFIG)).unwrap_err();
        assert!(failure.what().contains(CONFIG), "{failure}");
    }
}
