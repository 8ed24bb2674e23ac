//! The role of the only `IAMRoleSelector` that matches.

use super::allowed_namespaces::Labels;
use super::error::ResolutionError;
use super::objects::Objects;
use super::plan::Plan;
use super::role::{Role, RoleSpec};

/// Returns the plan for the only selector that matches the instances of a cluster with these labels.
///
/// # Errors
///
/// Returns an error if no selector matches, if several selectors match, or if the matching selector is invalid. The
/// runtime of AWS Controllers for Kubernetes would skip an invalid selector, and continue with the controller's own
/// role.
pub(super) fn resolve(
    objects: &Objects,
    namespace: &str,
    cluster_labels: &Labels,
) -> Result<Plan, ResolutionError> {
    let labels = objects.namespaces.get(namespace).map(|found| &found.labels);
    let selectors = objects.role_selectors.iter();
    let matching = selectors.filter(|(_, selector)| match selector {
        Ok(selector) => selector.matches(namespace, labels, cluster_labels),
        // An invalid selector is treated as matching, because it could have been intended to match.
        Err(_) => true,
    });
    let matching: Vec<_> = matching.collect();
    let (name, selector) = match *matching.as_slice() {
        [] => return Err(ResolutionError::NoRoleSelector),
        [one] => one,
        _ => {
            let names = matching.into_iter().map(|(name, _)| name.clone());
            return Err(ResolutionError::RoleSelectorConflict(names.collect()));
        }
    };
    let invalid = |detail: String| ResolutionError::InvalidRoleSelector {
        name: name.clone(),
        detail,
    };
    let selector = selector.as_ref();
    let selector = selector.map_err(|unreadable| invalid(unreadable.detail.clone()))?;
    selector
        .check()
        .map_err(|detail| invalid(detail.to_owned()))?;
    let spec = RoleSpec {
        role_arn: selector.arn.clone(),
        ..RoleSpec::default()
    };
    let role = Role::new(&spec, name).map_err(|error| invalid(error.to_string()))?;
    Ok(Plan::of_controller(role))
}

#[cfg(test)]
mod tests;
