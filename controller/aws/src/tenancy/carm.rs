//! Cross-account resource management in AWS Controllers for Kubernetes (CARM): annotations on a namespace, and
//! `ConfigMap` objects with the roles for accounts and teams.
//!
//! CARM is for clusters that Cluster API Provider AWS did not create. The order is the same as in AWS Controllers for
//! Kubernetes with both feature gates, `TeamLevelCARM` and `ServiceLevelCARM`: a team precedes an account, and the key
//! for the service precedes the plain key. In the cases in which the runtime of AWS Controllers for Kubernetes
//! continues with the controller's own role, this module returns an error.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::error::{AccountMismatch, ResolutionError};
use super::objects::{ACCOUNT_MAP, Namespace, OWNER_ACCOUNT_ID, Objects, TEAM_ID, TEAM_MAP};
use super::plan::Plan;
use super::role::{Role, RoleSpec};
use crate::document::is_account;

/// The service whose roles are used. A key can start with the name of the service and a dot.
const SERVICE: &str = "ec2";

/// A `ConfigMap` value that contains more fields than an ARN, which is an extension of this project.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RoleValue {
    role_arn: String,
    #[serde(rename = "externalID", default)]
    external_id: String,
    #[serde(default)]
    session_name: String,
}

/// Returns the plan for the clusters in a namespace with these annotations. `None` if the namespace has no relevant
/// annotation.
///
/// # Errors
///
/// Returns an error if the role for a relevant annotation is not available. No fallback exists: a team's cluster never
/// gets the role for its account.
pub(super) fn resolve(
    objects: &Objects,
    namespace: &str,
    annotations: &Namespace,
) -> Result<Option<Plan>, ResolutionError> {
    let annotation = |key| {
        annotations
            .annotations
            .get(key)
            .filter(|value| !value.is_empty())
    };
    let role = match (annotation(TEAM_ID), annotation(OWNER_ACCOUNT_ID)) {
        (Some(team), _) => role(objects.team_map.as_ref(), TEAM_MAP, team)?,
        (None, Some(account)) => {
            if !is_account(account) {
                return Err(ResolutionError::InvalidAccount {
                    annotation: OWNER_ACCOUNT_ID,
                    namespace: namespace.to_owned(),
                    value: account.clone(),
                });
            }
            let role = role(objects.account_map.as_ref(), ACCOUNT_MAP, account)?;
            if role.arn.account() != account {
                return Err(ResolutionError::AccountMismatch(
                    AccountMismatch::OfNamespace {
                        annotated: account.clone(),
                        role: role.arn.to_string(),
                    },
                ));
            }
            role
        }
        (None, None) => return Ok(None),
    };
    Ok(Some(Plan::of_controller(role)))
}

fn role(
    map: Option<&BTreeMap<String, String>>,
    name: &'static str,
    id: &str,
) -> Result<Role, ResolutionError> {
    let map = map.ok_or(ResolutionError::CarmMapNotFound(name))?;
    let of_service = format!("{SERVICE}.{id}");
    let of_service = map.get_key_value(&of_service);
    let Some((key, value)) = of_service.or_else(|| map.get_key_value(id)) else {
        return Err(ResolutionError::CarmKeyNotFound {
            map: name,
            key: id.to_owned(),
        });
    };
    let key = key.clone();
    if value.trim().is_empty() {
        return Err(ResolutionError::CarmEmptyValue { map: name, key });
    }
    let invalid = |detail: String| ResolutionError::CarmInvalidValue {
        map: name,
        key: key.clone(),
        detail,
    };
    let spec = if value.trim_start().starts_with("arn:") {
        RoleSpec {
            role_arn: value.trim().to_owned(),
            ..RoleSpec::default()
        }
    } else {
        let value: RoleValue = serde_saphyr::from_str(value).map_err(|_| {
            invalid(
                "it is neither a role ARN nor YAML with roleArn, externalID and sessionName"
                    .to_owned(),
            )
        })?;
        RoleSpec {
            role_arn: value.role_arn,
            external_id: value.external_id,
            session_name: value.session_name,
            ..RoleSpec::default()
        }
    };
    Role::new(&spec, id).map_err(|error| invalid(error.to_string()))
}

#[cfg(test)]
mod tests;
