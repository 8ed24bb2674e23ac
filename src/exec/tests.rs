use std::os::unix::ffi::OsStrExt;

use super::*;

const FULL: &str = concat!(
    r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","spec":{"cluster":{"#,
    r#""server":"https://127.0.0.1:6443","tls-server-name":"kubernetes","certificate-authority-data":"Q0E=","#,
    r#""proxy-url":"http://proxy:3128","config":{"nodeName":"n1"}},"interactive":false}}"#,
    "\n"
);

fn parse(text: &str) -> Result<ExecInfo<'_>, ExecInfoError> {
    ExecInfo::parse(OsStr::new(text))
}

#[test]
fn the_cluster_is_handed_on_as_it_came() {
    let info = parse(FULL).unwrap();

    assert_eq!(info.version, ApiVersion::V1);
    assert_eq!(
        info.cluster,
        Some(ExecCluster {
            server: "https://127.0.0.1:6443".into(),
            tls_server_name: Some("kubernetes".into()),
            insecure_skip_tls_verify: false,
            certificate_authority_data: Some("Q0E=".into()),
            proxy_url: Some("http://proxy:3128".into()),
            config: Some(r#"{"nodeName":"n1"}"#),
        })
    );
}

#[test]
fn both_versions_are_spoken_with_and_without_a_cluster() {
    for (name, version) in [("v1", ApiVersion::V1), ("v1beta1", ApiVersion::V1Beta1)] {
        for spec in [r#"{"interactive":false}"#, "{}"] {
            let text = format!(
                r#"{{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/{name}","spec":{spec}}}"#
            );
            let info = parse(&text).unwrap();
            assert_eq!((info.version, info.cluster), (version, None));
        }
    }
}

#[test]
fn the_extension_may_be_any_json() {
    for config in [r#"{"a":[1,{"b":null}]}"#, "[1]", r#""text""#, "true"] {
        let text = FULL.replace(r#"{"nodeName":"n1"}"#, config);
        assert_eq!(parse(&text).unwrap().cluster.unwrap().config, Some(config));
    }
    let text = FULL.replace(r#"{"nodeName":"n1"}"#, "null");
    assert_eq!(parse(&text).unwrap().cluster.unwrap().config, None);
}

#[test]
fn fields_that_a_later_client_go_adds_are_passed_over() {
    let text = FULL.replace(
        r#""interactive":false"#,
        r#""interactive":false,"reason":{"code":401}"#,
    );

    assert!(parse(&text).is_ok());
}

#[test]
fn an_empty_variable_is_named() {
    for text in ["", "\n", "  "] {
        let error = parse(text).unwrap_err();
        assert!(matches!(error, ExecInfoError::Empty), "{error:?}");
        assert!(
            error
                .to_string()
                .starts_with("KUBERNETES_EXEC_INFO is empty")
        );
    }
}

#[test]
fn a_truncated_variable_is_told_from_a_broken_one() {
    let (text, _) = FULL.split_at(60);
    assert!(matches!(
        parse(text),
        Err(ExecInfoError::Truncated { len: 60 })
    ));

    for text in ["kind: ExecCredential", "{\"kind\":}", &format!("{FULL}x")] {
        let error = parse(text).unwrap_err();
        assert!(matches!(error, ExecInfoError::NotJson { .. }), "{error:?}");
    }
}

#[test]
fn binary_is_no_text() {
    let error = ExecInfo::parse(OsStr::from_bytes(b"\x7fELF\xff\x00")).unwrap_err();
    assert!(matches!(error, ExecInfoError::NotText), "{error:?}");

    let error = parse("\u{1}\u{2}").unwrap_err();
    assert!(matches!(error, ExecInfoError::NotJson { .. }), "{error:?}");
}

#[test]
fn ten_megabytes_are_not_parsed() {
    let error = parse(&" ".repeat(10 << 20)).unwrap_err();

    assert!(
        matches!(error, ExecInfoError::TooLarge { len: 10_485_760 }),
        "{error:?}"
    );
}

#[test]
fn another_kind_or_version_is_named() {
    let kind = FULL.replace("\"ExecCredential\"", "\"Config\"");
    let error = parse(&kind).unwrap_err().to_string();
    assert_eq!(
        error,
        r#"KUBERNETES_EXEC_INFO: field kind is "Config", not "ExecCredential""#
    );

    let version = FULL.replace("k8s.io/v1", "k8s.io/v1alpha1");
    let error = parse(&version).unwrap_err();
    assert!(matches!(&error, ExecInfoError::Version { found } if found.ends_with("/v1alpha1")));

    assert!(matches!(parse("{}"), Err(ExecInfoError::Kind { found }) if found.is_empty()));
    let unversioned = r#"{"kind":"ExecCredential"}"#;
    assert!(
        matches!(parse(unversioned), Err(ExecInfoError::Version { found }) if found.is_empty())
    );
}

#[test]
fn a_field_of_another_type_is_named() {
    for (from, to, expected) in [
        (r#""https://127.0.0.1:6443""#, "7", "spec.cluster.server"),
        (r#""Q0E=""#, "{}", "spec.cluster.certificate-authority-data"),
        (r#""ExecCredential""#, "[]", "kind"),
    ] {
        let text = FULL.replacen(from, to, 1);
        let error = parse(&text).unwrap_err();
        let ExecInfoError::Field { path } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(path, expected);
    }
}

#[test]
fn one_line_of_json_is_the_answer() {
    let key = Secret::new("-----BEGIN PRIVATE KEY-----\nk\n-----END PRIVATE KEY-----\n".to_owned());
    let credential = ExecCredential {
        version: ApiVersion::V1Beta1,
        expiration: SystemTime::UNIX_EPOCH + Duration::from_millis(1_767_225_600_999),
        certificate_pem: "-----BEGIN CERTIFICATE-----\nc\n-----END CERTIFICATE-----\n",
        key_pem: &key,
    };
    let mut written = Vec::new();
    credential.write_to(&mut written).unwrap();

    assert_eq!(
        String::from_utf8(written).unwrap(),
        concat!(
            r#"{"apiVersion":"client.authentication.k8s.io/v1beta1","kind":"ExecCredential","status":"#,
            r#"{"expirationTimestamp":"2026-01-01T00:00:00Z","#,
            r#""clientCertificateData":"-----BEGIN CERTIFICATE-----\nc\n-----END CERTIFICATE-----\n","#,
            r#""clientKeyData":"-----BEGIN PRIVATE KEY-----\nk\n-----END PRIVATE KEY-----\n"}}"#,
            "\n"
        )
    );
    assert!(!format!("{credential:?}").contains("PRIVATE"));
}

#[test]
fn an_expiry_that_no_calendar_has_is_the_nearest_that_one_has() {
    let second = Duration::from_secs(1);
    let last = SystemTime::UNIX_EPOCH + LAST_TIMESTAMP;

    assert_eq!(
        rfc3339(SystemTime::UNIX_EPOCH - second),
        "1970-01-01T00:00:00Z"
    );
    assert_eq!(rfc3339(last), "9999-12-31T23:59:59Z");
    assert_eq!(rfc3339(last + second), "9999-12-31T23:59:59Z");
}

#[test]
fn debug_shows_neither_a_proxys_password_nor_the_extension() {
    let text = r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","spec":{"cluster":{"server":"https://x","proxy-url":"http://u:pa55@proxy","config":{"key":"pa55"}}}}"#;
    let info = ExecInfo::parse(text.as_ref()).unwrap();

    let shown = format!("{info:?}");

    assert!(
        shown.contains("https://x") && !shown.contains("pa55"),
        "{shown}"
    );
}
