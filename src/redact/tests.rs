//! Tests of secrets that are removed from text, and of texts that do not change.

mod corpus;

use super::*;

fn redact(text: &str) -> String {
    let mut redactor = Redactor::default();
    redactor.know(
        "-----BEGIN EC PRIVATE KEY-----\nknownline0123\nshort\n-----END EC PRIVATE KEY-----\n",
    );
    redactor.know("known-token-0123");
    redactor.redact(text).0
}

#[test]
fn secrets_are_removed_by_format_by_context_and_by_value() {
    let long = "aB3+".repeat(12);
    for (text, expected) in [
        ("a knownline0123 b".to_owned(), "a (redacted) b".to_owned()),
        ("xknown-token-0123y".to_owned(), "x(redacted)y".to_owned()),
        (
            "token abcdef.0123456789abcdef.".to_owned(),
            "token (redacted)".to_owned(),
        ),
        (
            "\"token\":\"s3cret\"".to_owned(),
            "\"token\":\"(redacted)\"".to_owned(),
        ),
        ("password: x".to_owned(), "password: (redacted)".to_owned()),
        (
            "Authorization: Bearer abc".to_owned(),
            "Authorization: Bearer (redacted)".to_owned(),
        ),
        (
            format!("a Signature={}, a", "0a".repeat(32)),
            "a Signature=(redacted), a".to_owned(),
        ),
        (
            "Credential=ASIA0123456789ABCDEF/20260101/eu-west-1/sts".to_owned(),
            "Credential=(redacted)".to_owned(),
        ),
        (
            "of ASIA0123456789ABCDEF".to_owned(),
            "of (redacted)".to_owned(),
        ),
        (
            format!("data {long}== end"),
            "data (redacted)== end".to_owned(),
        ),
        (
            "x-amz-security-token: IQoJ".to_owned(),
            "x-amz-security-token: (redacted)".to_owned(),
        ),
        (
            "http://user:pa55@proxy:3128/x".to_owned(),
            "http://(redacted)@proxy:3128/x".to_owned(),
        ),
        (
            "a\n-----BEGIN PRIVATE KEY-----\nMIG\n-----END PRIVATE KEY-----\nb".to_owned(),
            "a\n(redacted)\nb".to_owned(),
        ),
        (
            "one -----BEGIN RSA PRIVATE KEY-----\\nMIG and no end".to_owned(),
            "one (redacted)".to_owned(),
        ),
    ] {
        assert_eq!(redact(&text), expected, "{text}");
    }
}

#[test]
fn diagnostic_text_is_not_redacted() {
    let digest = "0123456789abcdef".repeat(4);
    for text in [
        "the bootstrap token has expired",
        "https://10.0.0.1:6443 does not accept the credential (401 Unauthorized): expired",
        "ip-10-0-0-1.eu-west-1.compute.internal aws:///eu-west-1a/i-0123456789abcdef0",
        "/etc/systemd/system/kubelet.service.d/20-kubelet-authenticator.conf",
        "node-csr kubelet-authenticator-0123456789abcdef",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        &digest,
        "\"signature\": \"present\", \"privateKey\": \"fits\"",
        "token:\nnext line",
        "secret:\n  name: x",
        "--token-file=/x --authentication-token-webhook=true --client-ca-file /y",
        "automountServiceAccountToken: false\na: b",
        "{\"token\": null, \"credential\": {\"a\": 1}, \"password\": \"\"}",
        "{\n  \"cure\": \"a new bootstrap token\",\n    \"a\": \"b\"\n}",
        "open /var/run/secrets/token: no such file or directory",
        "registry/a:v1@sha256:0123 git@github.com:a https://[::1]:6443/?a=b@c https://h:1/@",
    ] {
        assert_eq!(redact(text), text);
    }
}

/// Input texts, and the expected results.
const FORMS: &[(&str, &str)] = &[
    // Options of programs.
    (
        "kubelet --password=hunter2 --v=2",
        "kubelet --password=(redacted) --v=2",
    ),
    ("x --token=abc --v=2", "x --token=(redacted) --v=2"),
    (
        "x --bootstrap-token hunter2 --v 2",
        "x --bootstrap-token (redacted) --v 2",
    ),
    (
        "[\"--token\", \"hunter2\", \"--v\"]",
        "[\"--token\", \"(redacted)\", \"--v\"]",
    ),
    (
        "x \"--password=a b\" --v=2",
        "x \"--password=(redacted)\" --v=2",
    ),
    (
        "x --password='a b'\"c d\"e --v=2",
        "x --password='(redacted) --v=2",
    ),
    (
        "x --password=a\\ b\"c d\" --v=2",
        "x --password=(redacted)\" --v=2",
    ),
    (
        "x --token=abc \\\n  --v=2",
        "x --token=(redacted) \\\n  --v=2",
    ),
    ("--token=a --v=2", "--token=(redacted) --v=2"),
    // Variables in systemd units and in environment files.
    (
        "Environment=DB_PASSWORD=x A=b",
        "Environment=DB_PASSWORD=(redacted) A=b",
    ),
    (
        "Environment=\"DB_PASSWORD=a b\" \"A=b\"",
        "Environment=\"DB_PASSWORD=(redacted)\" \"A=b\"",
    ),
    (
        "Environment=AWS_SESSION_TOKEN=x",
        "Environment=AWS_SESSION_TOKEN=(redacted)",
    ),
    ("DB_PASSWORD=a b c\nA=b", "DB_PASSWORD=(redacted)\nA=b"),
    ("export API_KEY='a b'; x", "export API_KEY='(redacted)'; x"),
    (
        "Environment=PW_SECRET=\"a \\\nb\"\nA=b",
        "Environment=PW_SECRET=\"(redacted)\nA=b",
    ),
    // Secrets in YAML.
    (
        "a: b\nclient_secret: x\nc: d",
        "a: b\nclient_secret: (redacted)\nc: d",
    ),
    ("password: ab$cdef", "password: (redacted)"),
    (
        "password: correct horse # x\na: b",
        "password: (redacted)\na: b",
    ),
    ("- token: a b\n  user: c", "- token: (redacted)\n  user: c"),
    ("password: 'it''s me'\na: b", "password: '(redacted)\na: b"),
    (
        "password: \"a b\n  c d\"\na: b",
        "password: \"(redacted)\na: b",
    ),
    (
        "  token: |\n    abc\n\n    def\n  a: b",
        "  token: (redacted)\n  a: b",
    ),
    ("token:\n  abc\na: b", "token:(redacted)\na: b"),
    (
        "{user: a, password: b c, d: e}",
        "{user: a, password: (redacted), d: e}",
    ),
    (
        "client-key-data: LS0t\na: b",
        "client-key-data: (redacted)\na: b",
    ),
    (
        "tokenData: LS0t\ntoken-data: LS0=\na: b",
        "tokenData: (redacted)\ntoken-data: (redacted)\na: b",
    ),
    // Secrets in JSON, and in JSON within JSON strings.
    (
        "{\"token\":\"a b\",\"c\":\"d\"}",
        "{\"token\":\"(redacted)\",\"c\":\"d\"}",
    ),
    (
        "{\"accessToken\" : \"a\\\"b\", \"c\": 1}",
        "{\"accessToken\" : \"(redacted)\", \"c\": 1}",
    ),
    (
        "\"{\\\"token\\\":\\\"a \\\\\\\"b\\\",\\\"c\\\":1}\"",
        "\"{\\\"token\\\":\\\"(redacted)\\\",\\\"c\\\":1}\"",
    ),
    (
        "{\"a\": \"bad token=x$y\",\n",
        "{\"a\": \"bad token=(redacted)\",\n",
    ),
    (
        "{\"a\": \"token: x y\", \"b\": 1}",
        "{\"a\": \"token: (redacted)\", \"b\": 1}",
    ),
    ("\"the token\": \"a b\"", "\"the token\": \"(redacted)\""),
    // Secrets in headers, queries and log lines.
    (
        "k[1]: Authorization: Bearer a$b c",
        "k[1]: Authorization: Bearer (redacted) c",
    ),
    (
        "curl -H \"Authorization: Basic YTpi\" x",
        "curl -H \"Authorization: Basic (redacted)\" x",
    ),
    (
        "k[1]: Proxy-Authorization: Digest username=\"a\", response=\"b c\"\nd",
        "k[1]: Proxy-Authorization: (redacted)\"\nd",
    ),
    (
        "\"authorization\": \"Negotiate YTpi x\"",
        "\"authorization\": \"(redacted)\"",
    ),
    (
        "GET /x?a=b&access_token=x%20y HTTP/1.1",
        "GET /x?a=b&access_token=(redacted) HTTP/1.1",
    ),
    (
        "k[1]: msg token=\"a b\" err=\"c d\"",
        "k[1]: msg token=\"(redacted)\" err=\"c d\"",
    ),
    // Login commands and credentials.
    (
        "HTTPS_PROXY=user:p=w@proxy:3128 a",
        "HTTPS_PROXY=(redacted)@proxy:3128 a",
    ),
    (
        "proxy: \"user:p@w@[::1]:3128\"",
        "proxy: \"(redacted)@[::1]:3128\"",
    ),
    ("a@b/c:d@e/x", "a@b/(redacted)@e/x"),
    (
        "https://user:p/w@proxy:3128",
        "https://(redacted)@proxy:3128",
    ),
    ("https://token@host/x", "https://(redacted)@host/x"),
];

#[test]
fn secrets_are_removed_in_every_format() {
    let wrong = FORMS.iter().filter_map(|(text, expected)| {
        let found = redact(text);
        (found != *expected).then(|| format!("{text:?}\n  {found:?}, not\n  {expected:?}\n"))
    });
    assert_eq!(wrong.collect::<String>(), "");
}
