//! Small changes to the text of EC2 responses.

use std::ops::Range;

/// A field of an instance that a test cannot set in moto.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// The time at which the first volume was attached.
    RootAttached,
    /// The device index of the first network interface.
    InterfaceIndex,
    /// All network interfaces, as XML. Can be empty.
    Interfaces,
    /// All volumes, as XML. Can be empty.
    Volumes,
    /// The root device: `ebs` or `instance-store`.
    RootDeviceType,
    /// The time at which the instance was launched.
    Launched,
    /// The name of the instance's state.
    State,
    /// The private DNS name of the instance.
    PrivateDnsName,
    /// The private IPv4 address of the instance. Can be empty.
    PrivateIp,
    /// The account that owns the instance and all other instances in its reservation.
    Owner,
}

impl Field {
    /// The text that precedes the field in the instance, and the name of the field's element.
    fn place(self) -> (&'static str, &'static str) {
        match self {
            Self::RootAttached => ("<blockDeviceMapping>", "attachTime"),
            Self::InterfaceIndex => ("<networkInterfaceSet>", "deviceIndex"),
            Self::Interfaces => ("", "networkInterfaceSet"),
            Self::Volumes => ("", "blockDeviceMapping"),
            Self::RootDeviceType => ("", "rootDeviceType"),
            Self::Launched => ("", "launchTime"),
            Self::State => ("<instanceState>", "name"),
            Self::PrivateDnsName => ("</instanceState>", "privateDnsName"),
            Self::PrivateIp => ("</instanceState>", "privateIpAddress"),
            Self::Owner => ("", "ownerId"),
        }
    }
}

/// Sets a field of an instance in a response, if the response contains the instance.
pub(super) fn amend(answer: &mut String, instance: &str, field: Field, value: &str) {
    let Some(item) = instance_item(answer, instance) else {
        return;
    };
    let within = match field {
        // Only this field is outside the instance: it is in the reservation.
        Field::Owner => {
            let set = answer[..item.start].rfind("<instancesSet>");
            let set = set.expect("an instance is in a set");
            let reservation = answer[..set].rfind("<reservationId>");
            reservation.expect("a set is in a reservation")..set
        }
        _ => item,
    };
    let (after, element) = field.place();
    let found = content(answer, within, after, element);
    let found = found.unwrap_or_else(|| panic!("{instance} has no {element} behind {after:?}"));
    answer.replace_range(found, value);
}

/// Removes an instance from a response.
pub(super) fn remove(answer: &mut String, instance: &str) {
    if let Some(item) = instance_item(answer, instance) {
        answer.replace_range(item, "");
    }
}

/// The content of the first element with the name `element` in `text`, after the position of `after`.
pub(super) fn text<'a>(text: &'a str, after: &str, element: &str) -> Option<&'a str> {
    content(text, 0..text.len(), after, element).map(|range| &text[range])
}

/// Each instance in a response.
pub(super) fn instances(answer: &str) -> Vec<&str> {
    let sets = answer.match_indices("<instancesSet>");
    sets.flat_map(|(start, tag)| items(answer, start + tag.len()))
        .map(|range| &answer[range])
        .collect()
}

fn instance_item(answer: &str, instance: &str) -> Option<Range<usize>> {
    let id = format!("<instanceId>{instance}</instanceId>");
    let sets = answer.match_indices("<instancesSet>");
    sets.flat_map(|(start, tag)| items(answer, start + tag.len()))
        .find(|range| answer[range.clone()].contains(&id))
}

/// The outermost items from `start` to the end of the list.
fn items(answer: &str, start: usize) -> Vec<Range<usize>> {
    const OPEN: &str = "<item>";
    const CLOSE: &str = "</item>";
    let (mut position, mut begin, mut depth) = (start, start, 0_usize);
    let mut found = Vec::new();
    while let Some(offset) = answer[position..].find('<') {
        position += offset;
        let rest = &answer[position..];
        if rest.starts_with(OPEN) {
            if depth == 0 {
                begin = position;
            }
            depth += 1;
        } else if rest.starts_with(CLOSE) {
            depth -= 1;
            if depth == 0 {
                found.push(begin..position + CLOSE.len());
            }
        } else if depth == 0 && rest.starts_with("</") {
            break;
        }
        position += 1;
    }
    found
}

fn content(answer: &str, within: Range<usize>, after: &str, element: &str) -> Option<Range<usize>> {
    let (open, close) = (format!("<{element}>"), format!("</{element}>"));
    let mut start = within.start;
    start += answer[start..within.end].find(after)? + after.len();
    start += answer[start..within.end].find(&open)? + open.len();
    let end = start + answer[start..within.end].find(&close)?;
    Some(start..end)
}
