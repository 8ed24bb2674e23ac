use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use super::*;

#[test]
fn an_invalid_value_is_refused_in_every_source() {
    for (name, value, expected) in [
        ("nodeName", "N1", "a node name is"),
        ("providerID", "i-1", "a provider ID is"),
        ("bootstrapKubeconfig", "b", "a path begins with '/'"),
        ("kubeconfig", "./k", "a path begins with '/'"),
        ("stateDirectory", "~/s", "a path begins with '/'"),
        ("audience", "a b", "an audience is"),
        ("signerName", "cluster-x-k8s-io/s", "a signer's name is"),
        ("signerName", "example.com/s/v1", "a signer's name is"),
        ("expirationSeconds", "599", "a whole number from 600 to"),
        ("timeoutSeconds", "0", "a whole number from 1 to 600"),
        ("timeoutSeconds", "601", "a whole number from 1 to 600"),
    ] {
        let key = entry(name);
        let error = World::new().file(&format!("{name}: {value}")).error();
        let wanted = format!("/config.yaml: line 3: key {name}: {expected}");
        assert!(error.starts_with(&wanted), "{error}");

        let error = World::new()
            .file("")
            .variable(&key.variable(), value)
            .error();
        assert!(
            error.starts_with(&format!("{}: {expected}", key.variable())),
            "{error}"
        );

        let by_flag = Sources {
            flags: flags(name, value),
            ..Sources::default()
        };
        let error = load(by_flag, None).unwrap_err();
        assert_eq!(error.code(), Code::Usage);
        let error = error.to_string();
        assert!(
            error.starts_with(&format!("--{}: {expected}", key.flag)),
            "{error}"
        );

        let json = value
            .parse::<u32>()
            .map_or(format!("{value:?}"), |number| number.to_string());
        let error = of_extension(&format!("{{\"{name}\":{json}}}"));
        let place = "KUBERNETES_EXEC_INFO: spec.cluster.config: line 1";
        assert!(
            error.starts_with(&format!("{place}: key {name}: {expected}")),
            "{error}"
        );
    }
}

fn of_extension(json: &str) -> String {
    let sources = Sources {
        extension: Some(json),
        ..Sources::default()
    };
    let error = load(sources, None).unwrap_err();
    assert_eq!(error.code(), Code::Configuration);
    error.to_string()
}

#[test]
fn a_value_of_another_type_names_its_key() {
    for contents in [
        "nodeName: [a]",
        "nodeName: {a: b}",
        "expirationSeconds: soon",
        "timeoutSeconds: -1",
        "tpm: [h1]",
    ] {
        let error = World::new().file(contents).error();
        let key = contents.split_once(':').unwrap().0;
        assert!(
            error.starts_with(&format!("/config.yaml: line 3: key {key}: ")),
            "{error}"
        );
    }
    let name = entry("nodeName").variable().into();
    let error = load(Sources::default(), [(name, OsString::from_vec(vec![0xff]))]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "KUBELET_AUTHENTICATOR_NODE_NAME: it is not UTF-8"
    );
}

#[test]
fn the_extension_is_read_as_strictly_as_a_file() {
    for (extension, expected) in [
        (
            r#"{"provider":"aws"}"#,
            "key provider: there is no such key",
        ),
        (
            r#"{"nodeName":"a","nodeName":"b"}"#,
            "key nodeName: the key is there twice",
        ),
        (
            r#"{"nodeName":"","nodeName":"b"}"#,
            "key nodeName: the key is there twice",
        ),
        (
            r#"{"nodeName":"a","nodeName":""}"#,
            "key nodeName: the key is there twice",
        ),
        (
            r#"{"kind":"Config"}"#,
            "key kind: \"KubeletAuthenticatorConfiguration\" is needed",
        ),
        ("[]", "not YAML"),
    ] {
        let error = of_extension(extension);
        assert!(
            error.starts_with("KUBERNETES_EXEC_INFO: spec.cluster.config: "),
            "{error}"
        );
        assert!(error.contains(expected), "{error}");
    }
}
