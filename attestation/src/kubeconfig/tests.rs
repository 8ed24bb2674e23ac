mod cluster;
mod document;
mod user;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use pem::{EncodeConfig, LineEnding, Pem};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::Policy::{Machine, Tenant};
use super::*;

const TOKEN: &str = "abcdef.0123456789abcdef";

const CLUSTER: &str = "/clusters/1/cluster";
const USER: &str = "/users/0/user";

/// A PEM block with arbitrary content, which is not parsed.
fn pem(label: &str, content: &str) -> String {
    let config = EncodeConfig::new().set_line_ending(LineEnding::LF);
    pem::encode_config(&Pem::new(label, content), config)
}

fn certificate(content: &str) -> String {
    pem("CERTIFICATE", content)
}

fn key() -> String {
    pem("PRIVATE KEY", "key 0123456789abcdef")
}

fn base64(content: impl AsRef<[u8]>) -> Value {
    BASE64_STANDARD.encode(content).into()
}

/// A kubeconfig that is valid under both policies. It also has entries to which the current context does not refer.
fn valid() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "preferences": {}, "current-context": "here",
        "clusters": [
            {"name": "c0", "cluster": {"server": "http://elsewhere"}},
            {"name": "c1", "cluster": {
                "server": "https://api.example:6443",
                "certificate-authority-data": base64(certificate("CA")),
            }},
        ],
        "contexts": [
            {"name": "there", "context": {"cluster": "c0", "user": "u0"}},
            {"name": "here", "context": {"cluster": "c1", "user": "u1", "namespace": "default"}},
        ],
        "users": [{"name": "u1", "user": {"token": TOKEN}}],
    })
}

/// The valid kubeconfig with `value` at `pointer`. The last part of the pointer can be missing in the kubeconfig.
fn with(pointer: &str, value: Value) -> Value {
    let mut kubeconfig = valid();
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    let parent = kubeconfig.pointer_mut(parent).unwrap();
    match field.parse::<usize>() {
        Ok(index) => parent[index] = value,
        Err(_) => parent[field] = value,
    }
    kubeconfig
}

/// Reads a file next to the kubeconfig.
fn read(file: &str) -> Result<Zeroizing<Vec<u8>>, InvalidKubeconfig> {
    let content = match file {
        "ca.crt" => certificate("CA of the file").into(),
        "latin2.crt" => latin2(&certificate("CA of the file")),
        "client.crt" => certificate("client of the file").into(),
        "client.key" => key().into(),
        "token" => format!("{TOKEN}\n").into(),
        "latin2-token" => latin2(TOKEN),
        "empty" => b"\n".to_vec(),
        _ => return Err(InvalidKubeconfig::at(file, Refused::Missing)),
    };
    Ok(Zeroizing::new(content))
}

/// The text, preceded by a comment in ISO 8859-2, which is not valid UTF-8.
fn latin2(text: &str) -> Vec<u8> {
    [b"# wa\xbfny\n", text.as_bytes()].concat()
}

/// The base64 of the content, with these characters inserted after its first 16 characters and at its end.
fn broken_by(characters: &str, content: impl AsRef<[u8]>) -> Value {
    let text = BASE64_STANDARD.encode(content);
    let (first, rest) = text.split_at(16);
    [first, characters, rest, characters].concat().into()
}

type Contents = (ClusterEndpoint, Login);

fn parse(kubeconfig: &Value, policy: Policy) -> Result<Contents, InvalidKubeconfig> {
    let text = kubeconfig.to_string();
    let kubeconfig = Kubeconfig::parse("doc", text.as_bytes(), policy)?;
    Ok((kubeconfig.endpoint(read)?, kubeconfig.login(read)?))
}

/// The position that the error reports, and the reason. The error must not contain a secret.
fn refusal(kubeconfig: &Value, policy: Policy) -> (String, Refused) {
    let error = match parse(kubeconfig, policy) {
        Ok(contents) => panic!("{policy:?} {kubeconfig}: {contents:?}"),
        Err(error) => error,
    };
    let words = format!("{error} {error:?}");
    assert!(!words.contains("0123456789abcdef"), "{words}");
    let InvalidKubeconfig { place, why } = error;
    (place, why)
}

/// Checks the reason for the rejection with each policy. `None` means that the kubeconfig is valid.
fn check(kubeconfig: &Value, place: [&str; 2], why: [Option<Refused>; 2]) {
    for ((policy, place), why) in [Machine, Tenant].into_iter().zip(place).zip(why) {
        match why {
            None => assert!(parse(kubeconfig, policy).is_ok(), "{policy:?} {kubeconfig}"),
            Some(why) => {
                let expected = (format!("doc: {place}"), why);
                assert_eq!(refusal(kubeconfig, policy), expected, "{kubeconfig}");
            }
        }
    }
}

#[test]
fn a_file_reference_is_refused_if_files_are_not_allowed() {
    let error = no_files("ca.crt").unwrap_err();

    assert_eq!(
        error.to_string(),
        "a file: a file is not accepted; embed its content"
    );
}
