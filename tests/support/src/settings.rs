//! The settings of a plugin in the forms in which the tests pass them: as options, or in a file. A plugin from an
//! earlier commit also reads both formats.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;

use serde_json::{Map, Value, json};

/// The directory for drop-ins on a machine.
pub const DROP_INS: &str = "/etc/kubernetes/kubelet-authenticator/config.d";

/// The option for the setting with this key in a file, with its value: `--node-name=worker-1`.
pub fn option(key: &str, value: impl AsRef<OsStr>) -> OsString {
    let mut option = OsString::from(flag(key));
    option.push("=");
    option.push(value);
    option
}

/// The option for the setting with this key, without a value.
pub fn flag(key: &str) -> String {
    let mut name = String::from("--");
    let mut after_lower = false;
    for letter in key.chars() {
        if letter == '.' || (letter.is_ascii_uppercase() && after_lower) {
            name.push('-');
        }
        after_lower = letter.is_ascii_lowercase();
        if letter != '.' {
            name.push(letter.to_ascii_lowercase());
        }
    }
    name
}

/// A settings file, or a drop-in, that contains the settings with these keys.
pub fn file<'a>(settings: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let mut top = Map::new();
    for (key, value) in settings {
        match key.split_once('.') {
            None => drop(top.insert(key.to_owned(), value.into())),
            Some((section, key)) => {
                let section = top.entry(section).or_insert_with(|| json!({}));
                section[key] = value.into();
            }
        }
    }
    let mut text = String::from(
        "apiVersion: kubelet-authenticator.cluster.x-k8s.io/v1alpha1\n\
         kind: KubeletAuthenticatorConfiguration\n",
    );
    for (key, value) in top {
        let value: Value = value;
        writeln!(text, "{key}: {value}").expect("a String takes everything");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_name_is_derived_from_its_key() {
        for (key, expected) in [
            ("nodeName", "--node-name"),
            ("providerID", "--provider-id"),
            ("aws.metadataEndpoint", "--aws-metadata-endpoint"),
            ("tpm.tcti", "--tpm-tcti"),
        ] {
            assert_eq!(flag(key), expected);
        }
        assert_eq!(option("nodeName", "a b"), "--node-name=a b");
    }

    #[test]
    fn a_file_has_the_sections_of_its_keys() {
        let settings = [
            ("nodeName", "n"),
            ("aws.principal", "p"),
            ("aws.nodeName", "q"),
        ];
        let text = file(settings.map(|(key, value)| (key, value.to_owned())));

        let expected = "nodeName: \"n\"\n";
        assert!(text.contains(expected), "{text}");
        assert!(
            text.contains(r#"aws: {"nodeName":"q","principal":"p"}"#),
            "{text}"
        );
    }
}
