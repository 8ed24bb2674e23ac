//! Users and logins.

use super::*;

const CHAIN: &str = "client-certificate-data";
const KEY: &str = "client-key-data";

/// A user with a client certificate, and with these fields.
fn with_certificate(fields: &[(&str, Value)]) -> Value {
    let mut user = json!({CHAIN: base64(certificate("client")), KEY: base64(key())});
    for (field, value) in fields {
        user[field] = value.clone();
    }
    user
}

fn login(user: Value) -> Login {
    parse(&with(USER, user), Machine).unwrap().1
}

fn token(user: Value) -> String {
    match login(user) {
        Login::Token(token) => token.expose().clone(),
        Login::ClientCertificate { chain_pem, .. } => panic!("{chain_pem}"),
    }
}

/// The certificates in this user's login. The key is in the same file.
fn chain(user: Value) -> String {
    match login(user) {
        Login::Token(_) => panic!("a token"),
        Login::ClientCertificate { chain_pem, key_pem } => {
            assert_eq!(*key_pem.expose(), key());
            chain_pem
        }
    }
}

fn check_user(user: Value, field: &str, why: [Option<Refused>; 2]) {
    let places = [format!("user \"u1\": {field}"), format!("user: {field}")];
    let places = places.each_ref().map(String::as_str);
    check(&with(USER, user), places, why);
}

#[test]
fn a_token_that_is_not_valid_in_a_header_is_refused() {
    assert_eq!(token(json!({"token": TOKEN})), TOKEN);
    assert_eq!(token(json!({"token": format!(" {TOKEN}\n")})), TOKEN);
    for text in [
        "0123456789abcdef 0",
        "0123456789abcdef\n0",
        "0123456789abcdef\u{e4}",
        " ",
    ] {
        check_user(
            json!({"token": text}),
            "token",
            [Some(Refused::NotAToken); 2],
        );
    }
}

#[test]
fn a_token_file_takes_precedence_unless_it_is_empty_or_unreadable() {
    assert_eq!(token(json!({"tokenFile": "token"})), TOKEN);
    assert_eq!(
        token(json!({"tokenFile": "token", "token": "other"})),
        TOKEN
    );
    assert_eq!(
        token(json!({"tokenFile": "nowhere", "token": TOKEN})),
        TOKEN
    );
    assert_eq!(token(json!({"tokenFile": "empty", "token": TOKEN})), TOKEN);
    for (name, place, why) in [
        ("empty", "doc: user \"u1\": tokenFile", Refused::NotAToken),
        ("nowhere", "nowhere", Refused::Missing),
    ] {
        let user = with(USER, json!({"tokenFile": name}));
        assert_eq!(refusal(&user, Machine), (place.to_owned(), why));
    }
}

#[test]
fn a_client_certificate_can_be_inline_or_in_files() {
    let files = [
        ("client-certificate", json!("client.crt")),
        ("client-key", json!("client.key")),
    ];
    assert_eq!(chain(with_certificate(&[])), certificate("client"));
    assert_eq!(chain(with_certificate(&files)), certificate("client"));

    let [chain_file, key_file] = files;
    let user = with_certificate(&[(CHAIN, json!("")), (KEY, json!("")), chain_file, key_file]);
    assert_eq!(chain(user), certificate("client of the file"));
}

#[test]
fn a_key_with_any_supported_pem_label_is_read() {
    for label in ["PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY"] {
        let user = with_certificate(&[(KEY, base64(pem(label, "key")))]);
        check_user(user, "", [None; 2]);
    }
}

#[test]
fn only_certificates_are_read_from_a_chain_with_other_text() {
    let certificates = [certificate("client"), certificate("intermediate")].concat();
    let mixed = [key(), "text\n".to_owned(), certificates.clone(), key()].concat();

    assert_eq!(
        chain(with_certificate(&[(CHAIN, base64(mixed))])),
        certificates
    );
}

#[test]
fn two_credentials_are_refused_for_tenants_but_not_for_machines() {
    let token = ("token", json!(TOKEN));
    let both = with_certificate(std::slice::from_ref(&token));
    assert_eq!(chain(both.clone()), certificate("client"));

    check_user(both, "token", [None, Some(Refused::TwoCredentials)]);
    for half in [CHAIN, KEY] {
        let user = with_certificate(&[token.clone(), (half, Value::Null)]);
        let user = with(USER, user);
        assert_eq!(refusal(&user, Machine).1, Refused::Half);
        let two = ("doc: user: token".to_owned(), Refused::TwoCredentials);
        assert_eq!(refusal(&user, Tenant), two);
    }
}

#[test]
fn credentials_that_cannot_be_used_are_refused() {
    let with = |field, value| with_certificate(&[(field, value)]);
    let secret = base64("0123456789abcdef");
    for (user, field, why) in [
        (json!({}), "user", Refused::NoCredential),
        (
            json!({"token": "", "tokenFile": ""}),
            "user",
            Refused::NoCredential,
        ),
        (
            with(CHAIN, Value::Null),
            "client-certificate",
            Refused::Half,
        ),
        (with(CHAIN, json!("")), "client-certificate", Refused::Half),
        (with(CHAIN, json!("?")), CHAIN, Refused::NotBase64),
        (
            with(CHAIN, secret.clone()),
            "client-certificate",
            Refused::NotCertificates,
        ),
        (with(KEY, Value::Null), "client-key", Refused::Half),
        (with(KEY, json!("")), "client-key", Refused::Half),
        (with(KEY, json!("?")), KEY, Refused::NotBase64),
        (with(KEY, secret), "client-key", Refused::NotAKey),
    ] {
        check_user(user, field, [Some(why); 2]);
    }
}

#[test]
fn users_with_external_or_impersonated_credentials_are_refused() {
    for (field, value, why) in [
        ("exec", json!({"command": "/bin/sh"}), Refused::Exec),
        (
            "auth-provider",
            json!({"config": {"cmd-path": "/bin/sh"}}),
            Refused::AuthProvider,
        ),
        ("username", json!("u"), Refused::Password),
        ("password", json!("0123456789abcdef"), Refused::Password),
        ("as", json!("root"), Refused::Impersonation),
        ("as-uid", json!("1"), Refused::Impersonation),
        (
            "as-groups",
            json!(["system:masters"]),
            Refused::Impersonation,
        ),
        ("as-user-extra", json!({"a": ["b"]}), Refused::Impersonation),
    ] {
        check_user(json!({"token": TOKEN, field: value}), field, [Some(why); 2]);
        check_user(json!({"token": TOKEN, field: null}), field, [None; 2]);
    }
}

#[test]
fn empty_fields_are_refused_only_for_a_tenant() {
    for (field, empty, why) in [
        ("username", json!(""), Refused::Password),
        ("password", json!(""), Refused::Password),
        ("as", json!(""), Refused::Impersonation),
        ("as-uid", json!(""), Refused::Impersonation),
        ("as-groups", json!([]), Refused::Impersonation),
        ("as-user-extra", json!({}), Refused::Impersonation),
    ] {
        let user = json!({"token": TOKEN, field: empty});
        check_user(user, field, [None, Some(why)]);
    }
}

#[test]
fn only_a_machine_credential_can_have_line_breaks_and_text() {
    let not = [None, Some(Refused::NotBase64)];
    let certificate = certificate("client");
    check_user(
        with_certificate(&[(CHAIN, broken_by("\n", &certificate))]),
        CHAIN,
        not,
    );
    check_user(
        with_certificate(&[(KEY, broken_by("\r\n", key()))]),
        KEY,
        not,
    );

    let text = latin2(&certificate);
    let user = with_certificate(&[(CHAIN, base64(&text))]);
    check_user(user.clone(), CHAIN, [None, Some(Refused::NotCertificates)]);
    assert_eq!(chain(user), certificate);
    let user = with_certificate(&[(KEY, base64(latin2(&key())))]);
    check_user(user, KEY, [None, Some(Refused::NotAKey)]);

    for (field, named, why) in [
        (CHAIN, "client-certificate", Refused::NotCertificates),
        (KEY, "client-key", Refused::NotAKey),
    ] {
        let user = with_certificate(&[(field, base64([0xff]))]);
        let of_machine = (format!("doc: user \"u1\": {named}"), why);
        assert_eq!(refusal(&with(USER, user.clone()), Machine), of_machine);
        let of_tenant = (format!("doc: user: {field}"), why);
        assert_eq!(refusal(&with(USER, user), Tenant), of_tenant);
    }
    let file = with(USER, json!({"tokenFile": "latin2-token"}));
    let expected = ("doc: user \"u1\": tokenFile".to_owned(), Refused::NotAToken);
    assert_eq!(refusal(&file, Machine), expected);
}

#[test]
fn a_file_reference_in_a_tenant_user_is_not_read() {
    let file = |field| (field, [None, Some(Refused::File)]);
    for (field, why) in ["client-certificate", "client-key", "tokenFile"].map(file) {
        check_user(with_certificate(&[(field, json!("token"))]), field, why);
        check_user(with_certificate(&[(field, json!(""))]), field, [None; 2]);
    }
}

#[test]
fn every_user_of_a_tenant_is_checked() {
    let mut kubeconfig = valid();
    let users = kubeconfig["users"].as_array_mut().unwrap();
    users.push(json!({"name": "other", "user": {"exec": {"command": "/bin/sh"}}}));

    check(&kubeconfig, ["", "user: exec"], [None, Some(Refused::Exec)]);
}

#[test]
fn the_command_of_a_plugin_is_read_but_not_run() {
    let command = |user: Value| {
        let text = with(USER, user).to_string();
        let kubeconfig = Kubeconfig::parse("doc", text.as_bytes(), Machine).unwrap();
        assert!(kubeconfig.endpoint(read).is_ok());
        kubeconfig
            .exec()
            .map(|exec| exec.map(|it| it.command.clone().unwrap_or_default()))
    };

    assert_eq!(command(json!({"token": TOKEN})), Ok(None));
    let exec = json!({"exec": {"command": "/bin/true"}});
    assert_eq!(command(exec), Ok(Some("/bin/true".to_owned())));
    assert_eq!(command(json!({"exec": {}})), Ok(Some(String::new())));
    let place = "doc: user \"u1\"".to_owned();
    let why = Refused::Missing;
    assert_eq!(command(Value::Null), Err(InvalidKubeconfig { place, why }));
}

#[test]
fn a_token_or_a_certificate_counts_as_a_credential() {
    let has_credential = |user: Value| {
        let text = with(USER, user).to_string();
        let kubeconfig = Kubeconfig::parse("doc", text.as_bytes(), Machine).unwrap();
        kubeconfig.has_credential().unwrap()
    };

    assert!(has_credential(json!({"token": TOKEN})));
    for field in ["tokenFile", "client-certificate", CHAIN] {
        assert!(has_credential(json!({field: "something"})), "{field}");
        assert!(!has_credential(json!({field: ""})), "{field}");
    }
    assert!(!has_credential(json!({"exec": {"command": "plugin"}})));
    assert!(!has_credential(json!({})));
}
