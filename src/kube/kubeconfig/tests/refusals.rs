//! Invalid content of a kubeconfig.

use super::*;

#[test]
fn clusters_that_are_not_safe_are_refused() {
    let ca = "certificate-authority-data";
    for (field, value, why) in [
        (
            "insecure-skip-tls-verify",
            true.into(),
            Refused::SkipsVerification,
        ),
        (ca, "".into(), Refused::NoCa),
        (ca, Value::Null, Refused::NoCa),
        (ca, "?".into(), Refused::NotBase64),
        (ca, STANDARD.encode("CA").into(), Refused::NotCertificates),
        (ca, STANDARD.encode([0xff]).into(), Refused::NotCertificates),
        ("server", "".into(), Refused::Missing),
        ("server", Value::Null, Refused::Missing),
        ("server", "http://api.example".into(), Refused::NotHttps),
        ("server", "ftp://api.example".into(), Refused::NotHttps),
        ("server", "api.example:6443".into(), Refused::NotHttps),
        ("server", "api.example".into(), Refused::NotAUrl),
        (
            "server",
            "https://u:0123456789abcdef@api.example".into(),
            Refused::NotAUrl,
        ),
        ("server", "https://api.example?a=b".into(), Refused::NotAUrl),
        ("tls-server-name", "no name".into(), Refused::NotAServerName),
        (
            "tls-server-name",
            "192.0.2.1".into(),
            Refused::AddressAsServerName,
        ),
        (
            "tls-server-name",
            "2001:db8::1".into(),
            Refused::AddressAsServerName,
        ),
        ("proxy-url", "socks5://proxy".into(), Refused::ProxyScheme),
        ("proxy-url", "proxy".into(), Refused::NotAUrl),
    ] {
        let setting = Setting::new().cluster(field, value.clone());
        assert_eq!(
            setting.refused(),
            (format!("cluster \"c1\": {field}"), why),
            "{value}"
        );
    }
    let setting = Setting::new()
        .cluster("proxy-url", "http://proxy".into())
        .cluster("tls-server-name", "kubernetes".into());
    assert_eq!(setting.refused().1, Refused::ProxyWithServerName);
}

#[test]
fn users_whose_credential_is_not_their_own_are_refused() {
    for (field, value, why) in [
        ("exec", json!({"command": "/bin/true"}), Refused::Exec),
        (
            "auth-provider",
            json!({"name": "gcp"}),
            Refused::AuthProvider,
        ),
        ("username", json!("u"), Refused::Password),
        ("password", json!("0123456789abcdef"), Refused::Password),
        ("as", json!("system:admin"), Refused::Impersonation),
        ("as-uid", json!("1"), Refused::Impersonation),
        (
            "as-groups",
            json!(["system:masters"]),
            Refused::Impersonation,
        ),
        ("as-user-extra", json!({"a": ["b"]}), Refused::Impersonation),
    ] {
        let setting = Setting::new().user(json!({"token": TOKEN, field: value}));
        assert_eq!(setting.refused(), (format!("user \"u1\": {field}"), why));
    }
}

#[test]
fn credentials_that_cannot_be_are_refused() {
    let good = STANDARD.encode(Setting::new().pair.certificate_pem);
    let other = STANDARD.encode("0123456789abcdef");
    let pair = |certificate: &str, key: &str| json!({"client-certificate-data": certificate, "client-key-data": key});
    for (user, field, why) in [
        (json!({}), "user", Refused::NoCredential),
        (json!({"token": ""}), "user", Refused::NoCredential),
        (
            json!({"token": "0123456789abcdef 0"}),
            "token",
            Refused::NotAToken,
        ),
        (
            json!({"token": "0123456789abcdef\u{e4}"}),
            "token",
            Refused::NotAToken,
        ),
        (
            json!({"client-certificate-data": good}),
            "client-key",
            Refused::Half,
        ),
        (
            json!({"client-key-data": other}),
            "client-certificate",
            Refused::Half,
        ),
        (pair(&good, &other), "client-key", Refused::NotAKey),
        (
            pair(&other, &other),
            "client-certificate",
            Refused::NotCertificates,
        ),
        (pair(&good, "?"), "client-key-data", Refused::NotBase64),
        (
            pair(&good, &STANDARD.encode([0xff])),
            "client-key-data",
            Refused::NotAKey,
        ),
    ] {
        let setting = Setting::new().user(user);
        assert_eq!(setting.refused(), (format!("user \"u1\": {field}"), why));
    }
    let setting = Setting::new()
        .user(json!({"tokenFile": "token"}))
        .beside("token", "\n");
    assert_eq!(
        setting.refused(),
        ("user \"u1\": tokenFile".to_owned(), Refused::NotAToken)
    );
}
