//! The board of vibe-kanban: `issues.csv` of its export, as stories. Owns reading that file and
//! what its words mean here.
//!
//! The format is that of its server, in `crates/remote/src/routes/export.rs` of
//! BloopAI/vibe-kanban: CSV with a heading, of which columns came and went between versions, so
//! that they are found by name.

use kennel_daemon::config::Problem;

use super::import::{Wanted, id_of};

/// Where stories go whose work has begun or ended, if there are such stages.
#[derive(Clone, Debug, Default)]
pub(super) struct Stages {
    /// For those that wait; the first of all if not said.
    pub(super) first: Option<String>,
    /// The first in which agents work.
    pub(super) working: Option<String>,
    /// The first that ends a story.
    pub(super) done: Option<String>,
}

/// What a board has.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) wanted: Vec<Wanted>,
    pub(super) skipped: Vec<Skipped>,
}

/// An issue that becomes no story.
#[derive(Debug)]
pub(super) struct Skipped {
    /// Where it stands.
    pub(super) file: String,
    pub(super) id: String,
    pub(super) why: String,
}

/// The stories of a board's file, of one project if there are several.
pub(super) fn stories(
    file: &str,
    text: &str,
    project: Option<&str>,
    stages: &Stages,
) -> Result<Found, Problem> {
    let wrong = |line: Option<usize>, message: String| Problem {
        file: file.to_owned(),
        line,
        key: None,
        message,
    };
    let rows = rows(text).map_err(|line| wrong(Some(line), "the quotes have no end".to_owned()))?;
    let Some((heading, rows)) = rows.split_first() else {
        return Err(wrong(None, "it is empty".to_owned()));
    };
    let column = |name: &str| heading.cells.iter().position(|cell| cell.trim() == name);
    let (Some(id), Some(title), Some(status)) =
        (column("Issue ID"), column("Title"), column("Status"))
    else {
        let message = "this is no issues.csv of vibe-kanban: it needs the columns Issue ID, Title \
                       and Status";
        return Err(wrong(Some(1), message.to_owned()));
    };
    let (description, priority) = (column("Description"), column("Priority"));
    let of = column("Project");
    let of_row = |row: &Row| row.cell(of).to_owned();
    let mut projects: Vec<String> = rows.iter().map(of_row).collect();
    projects.sort();
    projects.dedup();
    match project {
        Some(name) if !projects.iter().any(|known| known == name) => {
            let known = projects.join(", ");
            return Err(wrong(None, format!("there is no project {name} in it, but {known}")));
        }
        None if projects.len() > 1 => {
            let known = projects.join(", ");
            return Err(wrong(None, format!("name one of its projects by --project: {known}")));
        }
        Some(_) | None => {}
    }
    let mut found = Found::default();
    for row in rows.iter().filter(|row| project.is_none_or(|name| of_row(row) == name)) {
        let name = row.cell(Some(id));
        let stage = match stage(row.cell(Some(status)), stages) {
            Ok(stage) => stage,
            Err(why) => {
                let file = format!("{file}:{}", row.line);
                found.skipped.push(Skipped { file, id: id_of(name), why });
                continue;
            }
        };
        let wanted = Wanted {
            file: format!("{file}:{}", row.line),
            id: id_of(name),
            title: row.cell(Some(title)).trim().to_owned(),
            text: row.cell(description).trim().to_owned(),
            stage,
            priority: rank(row.cell(priority)),
            ..Wanted::default()
        };
        if wanted.id.is_empty() || wanted.title.is_empty() {
            return Err(wrong(Some(row.line), "an issue needs an id and a title".to_owned()));
        }
        found.wanted.push(wanted);
    }
    Ok(found)
}

/// Where an issue of this status begins here. Its branch is not ours: what was under way or in
/// review there begins with an agent here.
fn stage(status: &str, stages: &Stages) -> Result<Option<String>, String> {
    let word: String = status.chars().filter(|c| c.is_alphanumeric()).collect();
    let needs = |stage: &Option<String>, what: &str| match stage {
        Some(stage) => Ok(Some(stage.clone())),
        None => Err(format!("it is {status}, and no stage here {what}")),
    };
    match word.to_lowercase().as_str() {
        "inprogress" | "inreview" => needs(&stages.working, "has agents"),
        "done" => needs(&stages.done, "ends a story"),
        "cancelled" | "canceled" => Err("it was cancelled".to_owned()),
        // To do, backlog, and columns of the user's own.
        _ => Ok(stages.first.clone()),
    }
}

fn rank(priority: &str) -> i32 {
    match priority.to_lowercase().as_str() {
        "urgent" => 2,
        "high" => 1,
        "low" => -1,
        _ => 0,
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Row {
    /// Where it begins, from 1.
    line: usize,
    cells: Vec<String>,
}

impl Row {
    fn cell(&self, column: Option<usize>) -> &str {
        column.and_then(|column| self.cells.get(column)).map_or("", String::as_str)
    }
}

/// The rows of a CSV file (RFC 4180), without empty lines; or the line whose quotes have no end.
fn rows(text: &str) -> Result<Vec<Row>, usize> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut rows = Vec::new();
    let mut row = Row { line: 1, cells: vec![String::new()] };
    let (mut line, mut quoted, mut opened) = (1, false, 1);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        line += usize::from(c == '\n');
        let Some(cell) = row.cells.last_mut() else { unreachable!("a row has a cell") };
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                cell.push('"');
            }
            '"' if quoted => quoted = false,
            '"' if cell.is_empty() => (quoted, opened) = (true, line),
            c if quoted => cell.push(c),
            ',' => row.cells.push(String::new()),
            '\r' if chars.peek() == Some(&'\n') => {}
            '\n' => {
                let next = Row { line, cells: vec![String::new()] };
                rows.push(std::mem::replace(&mut row, next));
            }
            c => cell.push(c),
        }
    }
    if quoted {
        return Err(opened);
    }
    rows.push(row);
    rows.retain(|row| row.cells.iter().any(|cell| !cell.is_empty()));
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOARD: &str = "\
Issue ID,Title,Description,Status,Priority,Project,Assignee(s),Creator
DOM-1,Log in,\"With a \"\"password\"\",
and a name.\",To do,Urgent,Web,,me
DOM-2,Log out,,In progress,,Web,,me
DOM-3,Review,,In review,Low,Web,,me
DOM-4,Old,,Done,Medium,Web,,me
DOM-5,Never,,Cancelled,,Web,,me
DOM-6,Mine,,On ice,High,Web,,me
";

    fn stages() -> Stages {
        let (working, done) = (Some("current".to_owned()), Some("done".to_owned()));
        Stages { first: None, working, done }
    }

    #[test]
    fn each_issue_of_a_board_is_a_story_where_its_status_says() {
        let found = stories("issues.csv", BOARD, None, &stages()).expect("it reads");
        let rows: Vec<(&str, Option<&str>, i32)> =
            found.wanted.iter().map(|w| (w.id.as_str(), w.stage.as_deref(), w.priority)).collect();
        assert_eq!(
            rows,
            [
                ("dom-1", None, 2),
                ("dom-2", Some("current"), 0),
                ("dom-3", Some("current"), -1),
                ("dom-4", Some("done"), 0),
                ("dom-6", None, 1),
            ]
        );
        assert_eq!(found.wanted[0].text, "With a \"password\",\nand a name.");
        assert_eq!(found.wanted[1].file, "issues.csv:4");
        let Skipped { file, id, why } = &found.skipped[0];
        assert_eq!([file, id, why], ["issues.csv:7", "dom-5", "it was cancelled"]);
        let none = stories("i", BOARD, None, &Stages::default()).expect("it reads");
        assert_eq!(none.skipped[0].why, "it is In progress, and no stage here has agents");
    }

    #[test]
    fn one_project_of_several_has_to_be_named() {
        let board = format!("{BOARD}DOM-7,Other,,To do,,Api,,me\n");
        let fails = |project| {
            let problem = stories("i.csv", &board, project, &stages()).expect_err("it is wrong");
            problem.to_string()
        };
        assert_eq!(fails(None), "i.csv: name one of its projects by --project: Api, Web");
        assert_eq!(fails(Some("X")), "i.csv: there is no project X in it, but Api, Web");
        let found = stories("i.csv", &board, Some("Api"), &stages()).expect("it reads");
        assert_eq!(found.wanted.len(), 1);
    }

    #[test]
    fn what_is_no_board_is_refused() {
        for (text, line, words) in [
            ("", None, "empty"),
            ("a,b\n", Some(1), "Issue ID"),
            ("Issue ID,Title,Status\nA,\"b\n", Some(2), "no end"),
            ("Issue ID,Title,Status\nA,,To do\n", Some(2), "a title"),
        ] {
            let problem = stories("i.csv", text, None, &stages()).expect_err(text);
            assert_eq!(problem.line, line, "{problem}");
            assert!(problem.message.contains(words), "{problem}");
        }
    }
}
