//! Tests of kubeconfigs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_authenticator_test_support::pki::{Contents, Subject, traditional_key};
use serde_json::json;

use super::bed::{Bed, Form, TOKEN};

const DATA: &str = "certificate-authority-data: ";
const USER: &str = "{token: abcdef.0123456789abcdef}";

pub fn forms(bed: &Bed) -> Vec<Form> {
    let mut forms = texts(bed);
    forms.extend(urls(bed));
    forms.extend(encodings(bed));
    forms.extend(users(bed));
    forms.extend(certificates(bed));
    forms
}

/// The normal kubeconfig, in which the text `new` replaces `old`.
fn with(bed: &Bed, name: &'static str, old: &str, new: &str) -> Form {
    let usual = bed.kubeconfig();
    assert!(usual.contains(old), "{old}");
    Form::new(name, bed, usual.replacen(old, new, 1))
}

/// The normal kubeconfig with an additional field in the cluster entry.
fn with_field(bed: &Bed, name: &'static str, field: &str) -> Form {
    with(bed, name, "contexts:", &format!("    {field}\ncontexts:"))
}

fn texts(bed: &Bed) -> Vec<Form> {
    let usual = bed.kubeconfig();
    let as_json = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {
            "server": bed.url(), "certificate-authority-data": bed.ca(),
        }}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
    });
    let utf16: Vec<u8> = format!("\u{feff}{usual}")
        .encode_utf16()
        .flat_map(u16::to_le_bytes)
        .collect();
    let latin1 = [usual.as_bytes(), b"# \xe4\n"].concat();
    vec![
        Form::new("usual kubeconfig", bed, &usual),
        Form::new("JSON", bed, as_json.to_string()),
        Form::new("CRLF line ends", bed, usual.replace('\n', "\r\n")),
        Form::new("UTF-8 byte order mark", bed, format!("\u{feff}{usual}")),
        Form::new("kubeconfig in UTF-16", bed, utf16).stricter("UTF-8"),
        Form::new("Latin-1 comment in a kubeconfig", bed, latin1),
        Form::new(
            "control character in a kubeconfig",
            bed,
            format!("{usual}# \u{7}\n"),
        ),
        Form::new("document start", bed, format!("---\n{usual}")),
        Form::new("YAML directive", bed, format!("%YAML 1.1\n---\n{usual}")),
        Form::new(
            "marker after the document",
            bed,
            format!("{usual}---\n# end\n"),
        ),
        Form::new(
            "two markers after the document",
            bed,
            format!("{usual}...\n---\n"),
        ),
        Form::new(
            "second document in a kubeconfig",
            bed,
            format!("{usual}---\n{usual}"),
        )
        .stricter("not a kubeconfig"),
        with(
            bed,
            "duplicate key in a kubeconfig",
            "kind: Config",
            "kind: Config\nkind: Config",
        )
        .stricter("not a kubeconfig"),
        with(
            bed,
            "anchor and alias",
            "kind: Config",
            "kind: &k Config\nx: *k",
        ),
        with(
            bed,
            "unknown field",
            "kind: Config",
            "kind: Config\nx: {y: [1]}",
        ),
        with(bed, "tab as indentation", "    server", "\tserver"),
        with(bed, "no apiVersion", "apiVersion: v1\n", ""),
        with(bed, "no kind", "kind: Config\n", ""),
        with(bed, "another kind", "kind: Config", "kind: config"),
        with(bed, "no current context", "current-context: c\n", ""),
        with(
            bed,
            "unknown context",
            "current-context: c\n",
            "current-context: x\n",
        ),
        with(
            bed,
            "field in upper case",
            DATA,
            "Certificate-Authority-Data: ",
        ),
        with(
            bed,
            "name twice",
            "contexts:",
            "- name: c\n  cluster: {}\ncontexts:",
        ),
        with(
            bed,
            "empty entry in a list",
            "contexts:",
            "- null\ncontexts:",
        )
        .stricter("not a kubeconfig"),
        with(
            bed,
            "entry without content",
            "contexts:",
            "- name: x\ncontexts:",
        ),
        with_field(
            bed,
            "verification that is not skipped",
            "insecure-skip-tls-verify: no",
        ),
        with_field(
            bed,
            "verification that is skipped with a CA",
            "insecure-skip-tls-verify: true",
        ),
        with(
            bed,
            "insecure-skip-tls-verify",
            &format!("{DATA}{}", bed.ca()),
            "insecure-skip-tls-verify: true",
        )
        .stricter("always verified"),
        with(bed, "no CA", &format!("    {DATA}{}\n", bed.ca()), ""),
        with_field(
            bed,
            "CA inline and in a missing file",
            "certificate-authority: /nowhere",
        )
        .looser(),
    ]
}

fn urls(bed: &Bed) -> Vec<Form> {
    let url = bed.url();
    let port = bed.server.port;
    let server = |name, server: String| {
        with(
            bed,
            name,
            &format!("server: {url}"),
            &format!("server: \"{server}\""),
        )
    };
    let named = |name, server_name: &str| {
        with_field(bed, name, &format!("tls-server-name: \"{server_name}\""))
    };
    vec![
        server("scheme in upper case", format!("HTTPS://127.0.0.1:{port}")),
        server("slash at the end", format!("{url}/")),
        server("path", format!("{url}/k8s/clusters/c-1")),
        server("name in upper case", format!("https://LOCALHOST:{port}")),
        server("server without https", format!("127.0.0.1:{port}")),
        server("plain http", format!("http://127.0.0.1:{port}")),
        server("no server", String::new()),
        server("query in the server's URL", format!("{url}/?a=b")).stricter("invalid server URL"),
        server("fragment in the server's URL", format!("{url}#a")).stricter("invalid server URL"),
        server(
            "user in the server's URL",
            format!("https://u:p@127.0.0.1:{port}"),
        )
        .stricter("invalid server URL"),
        server("space before the server's URL", format!(" {url}")).looser(),
        server("line break after the server's URL", format!("{url}\\n")).looser(),
        server("one slash after https", format!("https:/127.0.0.1:{port}")).looser(),
        server("address as a number", format!("https://2130706433:{port}")).looser(),
        named("another name", "api.test"),
        named("another name in upper case", "API.test"),
        named("another name with a dot at the end", "api.test."),
        named("another name with an underscore", "my_api.test"),
        named("address as the name", "127.0.0.1"),
        named("another address as the name", "127.0.0.2"),
        named("name that is not in the certificate", "other.test"),
        named("name that is none", "no name"),
        named("tls-server-name in brackets", "[127.0.0.1]").stricter("invalid server name"),
    ]
}

fn encodings(bed: &Bed) -> Vec<Form> {
    let encoded = bed.ca();
    let (first, rest) = encoded.split_at(64);
    let data = |name, data: String| {
        with(
            bed,
            name,
            &format!("{DATA}{encoded}"),
            &format!("{DATA}{data}"),
        )
    };
    let lines: String = encoded
        .as_bytes()
        .chunks(64)
        .map(|line| format!("      {}\n", str::from_utf8(line).unwrap()))
        .collect();
    let lines = lines.trim_end();
    let pem = bed.authority.certificate_pem();
    let longer = |more: &[u8]| STANDARD.encode([pem.as_bytes(), more].concat());
    // With one of these lengths, the base64 has padding and unused bits.
    let padded = ["", "\n", "\n\n"].map(|more| longer(more.as_bytes()));
    let padded = padded.into_iter().find(|it| it.ends_with("==")).unwrap();
    let unused = format!("{}h==", padded.strip_suffix("g==").unwrap_or(&padded));
    vec![
        data("base64 in a literal block", format!("|\n{lines}")),
        data("base64 in a folded block", format!(">\n{lines}")),
        data(
            "base64 in a plain scalar of several lines",
            format!("\n{lines}"),
        ),
        data(
            "line break at the end of base64",
            format!("\"{encoded}\\n\""),
        ),
        data("CRLF in base64", format!("\"{first}\\r\\n{rest}\"")),
        data("space in base64", format!("\"{first} {rest}\"")),
        data(
            "base64 without padding",
            format!("\"{}\"", padded.trim_end_matches('=')),
        ),
        data("unused bits in base64", format!("\"{unused}\"")),
        data(
            "PEM instead of base64",
            format!("|\n      {}", pem.trim().replace('\n', "\n      ")),
        ),
    ]
}

/// Base64 in lines of 64 characters, as a YAML literal block.
fn lines(content: &str) -> String {
    let encoded = STANDARD.encode(content);
    let lines = encoded.as_bytes().chunks(64);
    let lines = lines.map(|line| format!("\n      {}", str::from_utf8(line).unwrap()));
    format!("|{}", lines.collect::<String>())
}

fn certificates(bed: &Bed) -> Vec<Form> {
    let issue = || bed.authority.issue(&Contents::client(Subject::node("n1")));
    let (pair, other) = (issue(), issue());
    let user = |name, certificate: &str, key: &str| {
        let fields = [
            format!("\n    client-certificate-data: {certificate}"),
            format!("\n    client-key-data: {key}"),
        ];
        with(bed, name, USER, &fields.concat())
    };
    let encode = |text: &str| STANDARD.encode(text);
    let (certificate, key) = (&pair.certificate_pem, &pair.key_pem);
    let both = format!("{key}{certificate}");
    vec![
        user("client certificate", &encode(certificate), &encode(key)),
        user(
            "client certificate in lines",
            &lines(certificate),
            &lines(key),
        ),
        user(
            "client certificate and key in one text",
            &encode(&both),
            &encode(&both),
        ),
        user(
            "client key in SEC 1",
            &encode(certificate),
            &encode(&traditional_key(key)),
        ),
        user(
            "client key with another label",
            &encode(certificate),
            &encode(&key.replace(" PRIVATE", " RSA PRIVATE")),
        ),
        user(
            "client certificate with text around it",
            &encode(&format!("subject=x\n{certificate}\n")),
            &encode(&format!("Bag Attributes\n{key}")),
        ),
        user(
            "key of another certificate",
            &encode(certificate),
            &encode(&other.key_pem),
        ),
        user("client certificate without PEM", &encode("x"), &encode(key)),
    ]
}

fn users(bed: &Bed) -> Vec<Form> {
    let user = |name, user: &str| with(bed, name, USER, user);
    vec![
        user(
            "empty fields",
            "{token: a.b, username: '', password: '', as: '', as-groups: [], as-user-extra: {}, exec: null}",
        ),
        user("token with an inner space", "{token: 'a b'}").stricter("printable ASCII"),
        user("token that is not ASCII", "{token: 'a\u{e4}'}").stricter("printable ASCII"),
        user("line break at the end of a token", "{token: \"a.b\\n\"}").looser(),
        user("impersonation", "{token: a.b, as: x}").stricter("impersonation"),
        user("user without a credential", "{}"),
        user("empty token file", "{tokenFile: /dev/null}"),
        user(
            "empty token file next to a token",
            "{token: a.b, tokenFile: /dev/null}",
        ),
        user(
            "exec plugin",
            "{token: a.b, exec: {apiVersion: client.authentication.k8s.io/v1, command: 'false', interactiveMode: Never}}",
        )
        .stricter("exec plugins"),
        user("user name and password", "{username: a, password: b}").stricter("passwords"),
        user(
            "certificate without a key",
            &format!("{{client-certificate-data: {}}}", bed.ca()),
        ),
    ]
}
