use super::*;
use crate::tenancy::testing::{TENANT, arn, namespace, objects, summary};

const ACCOUNT: &str = "111122223333";

#[expect(clippy::unnecessary_wraps, reason = "as the objects have it")]
fn map(entries: &[(&str, &str)]) -> Option<BTreeMap<String, String>> {
    let entries = entries.iter();
    Some(
        entries
            .map(|&(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
    )
}

/// The role for a namespace that has these annotations and maps.
struct Case<'a> {
    annotations: &'a [(&'a str, &'a str)],
    accounts: Option<BTreeMap<String, String>>,
    teams: Option<BTreeMap<String, String>>,
}

impl Case<'_> {
    fn plan(self) -> Result<Option<Plan>, ResolutionError> {
        let mut objects = objects();
        namespace(&mut objects, TENANT, &[], self.annotations);
        objects.account_map = self.accounts;
        objects.team_map = self.teams;
        let namespace = &objects.namespaces[TENANT];
        resolve(&objects, TENANT, namespace)
    }

    fn role(self) -> Result<Option<String>, ResolutionError> {
        let plan = self.plan()?;
        Ok(plan.map(|plan| {
            let (root, roles) = summary(&plan);
            assert_eq!(root, "controller");
            roles.concat()
        }))
    }
}

fn of_team(teams: Option<BTreeMap<String, String>>) -> Result<Option<String>, ResolutionError> {
    let annotations = &[(TEAM_ID, "team-a"), (OWNER_ACCOUNT_ID, ACCOUNT)];
    Case {
        annotations,
        accounts: map(&[(ACCOUNT, &arn("account"))]),
        teams,
    }
    .role()
}

fn of_account(
    account: &str,
    accounts: Option<BTreeMap<String, String>>,
) -> Result<Option<String>, ResolutionError> {
    let annotations = &[(OWNER_ACCOUNT_ID, account)];
    Case {
        annotations,
        accounts,
        teams: None,
    }
    .role()
}

#[test]
fn a_namespace_without_annotations_has_no_role() {
    for annotations in [&[][..], &[(OWNER_ACCOUNT_ID, ""), (TEAM_ID, "")]] {
        let case = Case {
            annotations,
            accounts: map(&[]),
            teams: map(&[]),
        };
        assert_eq!(case.role(), Ok(None));
    }
}

#[test]
fn the_role_of_a_team_is_used_before_the_role_of_the_account() {
    assert_eq!(
        of_team(map(&[("team-a", &arn("team"))])),
        Ok(Some(arn("team")))
    );
}

#[test]
fn a_team_role_is_used_without_an_account() {
    let case = Case {
        annotations: &[(TEAM_ID, "team-a")],
        accounts: None,
        teams: map(&[("team-a", &arn("team"))]),
    };
    assert_eq!(case.role(), Ok(Some(arn("team"))));
}

#[test]
fn a_namespace_without_a_team_has_the_role_of_its_account() {
    let accounts = map(&[(ACCOUNT, &arn("account"))]);
    assert_eq!(of_account(ACCOUNT, accounts), Ok(Some(arn("account"))));
}

#[test]
fn a_team_without_a_role_does_not_fall_back_to_its_account() {
    let key = "team-a".to_owned();
    let error = of_team(map(&[])).unwrap_err();
    assert_eq!(
        error,
        ResolutionError::CarmKeyNotFound { map: TEAM_MAP, key }
    );
    assert_eq!(error.reason(), "CARMKeyNotFound");
}

#[test]
fn a_key_for_the_service_is_used_before_the_general_key() {
    let both = map(&[("ec2.team-a", &arn("service")), ("team-a", &arn("team"))]);
    assert_eq!(of_team(both), Ok(Some(arn("service"))));
    let alone = map(&[("ec2.team-a", &arn("service"))]);
    assert_eq!(of_team(alone), Ok(Some(arn("service"))));
    let another = map(&[("s3.team-a", &arn("s3")), ("team-a", &arn("team"))]);
    assert_eq!(of_team(another), Ok(Some(arn("team"))));
}

#[test]
fn an_empty_value_is_an_error_without_fallback() {
    for empty in ["", " \n"] {
        let error = of_team(map(&[("ec2.team-a", empty), ("team-a", &arn("team"))])).unwrap_err();
        let key = "ec2.team-a".to_owned();
        assert_eq!(
            error,
            ResolutionError::CarmEmptyValue { map: TEAM_MAP, key }
        );
        assert_eq!(error.reason(), "CARMEmptyValue");
    }
}

#[test]
fn a_missing_map_and_a_missing_key_have_different_reasons() {
    let error = of_account(ACCOUNT, None).unwrap_err();
    assert_eq!(error, ResolutionError::CarmMapNotFound(ACCOUNT_MAP));
    assert_eq!(error.reason(), "CARMMapNotFound");
    assert_eq!(
        of_account(ACCOUNT, map(&[])).unwrap_err().reason(),
        "CARMKeyNotFound"
    );
    assert_eq!(
        of_account(ACCOUNT, map(&[(ACCOUNT, "")]))
            .unwrap_err()
            .reason(),
        "CARMEmptyValue"
    );
    assert_eq!(
        of_account(ACCOUNT, map(&[(ACCOUNT, &arn("a"))])),
        Ok(Some(arn("a")))
    );
}

#[test]
fn a_role_must_belong_to_the_account_of_the_namespace() {
    let elsewhere = "arn:aws:iam::444455556666:role/a";
    let error = of_account(ACCOUNT, map(&[(ACCOUNT, elsewhere)])).unwrap_err();
    assert_eq!(error.reason(), "AccountMismatch");
    assert!(error.to_string().contains(elsewhere), "{error}");
}

#[test]
fn an_account_without_exactly_12_digits_is_invalid() {
    let error = of_account("my-ns", map(&[("my-ns", &arn("a"))])).unwrap_err();
    assert_eq!(error.reason(), "InvalidAccount");
}

#[test]
fn an_invalid_role_value_is_reported_with_its_map_and_key() {
    for invalid in [
        "nodes",
        "arn:aws:iam::111122223333:user/a",
        "roleArn: nodes",
        "roleArn: [",
        "a: b",
    ] {
        let error = of_account(ACCOUNT, map(&[(ACCOUNT, invalid)])).unwrap_err();
        assert_eq!(error.reason(), "InvalidRoleARN", "{invalid}");
        let shown = error.to_string();
        assert!(
            shown.contains(ACCOUNT_MAP) && shown.contains(ACCOUNT),
            "{shown}"
        );
    }
}

#[test]
fn a_value_can_have_an_external_id_and_a_session_name() {
    let value = format!(
        "roleArn: {}\nexternalID: one-two\nsessionName: three\n",
        arn("a")
    );
    let annotations = &[(OWNER_ACCOUNT_ID, ACCOUNT)];
    let case = Case {
        annotations,
        accounts: map(&[(ACCOUNT, &value)]),
        teams: None,
    };
    let plan = case.plan().unwrap().unwrap();
    let role = plan.roles.first().unwrap();
    assert_eq!(role.arn.to_string(), arn("a"));
    assert_eq!(role.external_id.as_deref(), Some("one-two"));
    assert_eq!(role.session_name, "three");
}

#[test]
fn the_alternative_ack_key_format_is_ignored() {
    let team = arn("team");
    let second = map(&[
        ("team-id/team-a", &team),
        ("team-id.team-a", &team),
        ("owner-account-id/111122223333", &team),
    ]);
    assert_eq!(
        of_team(second.clone()).unwrap_err().reason(),
        "CARMKeyNotFound"
    );
    assert_eq!(
        of_account(ACCOUNT, second).unwrap_err().reason(),
        "CARMKeyNotFound"
    );
}
