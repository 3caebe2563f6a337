//! The mind of stories, tested three ways: rule by rule, against a model, and in a simulated
//! world.
//!
//! What was changed in the mind to see that this fails, each caught by a rule, or by the model
//! where that is said. Of requests: an id of somebody gone taken again; what others wait for
//! removed; a move to the same stage; no stop after a hold, a move or a leaving; done forgotten in
//! the archive (the model). Of what was seen: a start not believed; a refusal believed of who
//! lives; a stray not recorded, not stopped, or not waited for; a start for a held story after a
//! crash, a stop not said again; what could not be read taken for nothing (the model); somebody
//! left alone in another stage. Of ends: one believed that is about another stage;
//! commits thrown away, or gone on with though nothing gated them; one retry too many, in a stage
//! or in all; a base that moves or a start that misfires for ever; a stop answered by a start; a
//! lost step or stray taken for dead; drift kept quiet; success thrown away because a stop was
//! under way; half a worktree taken for none. Of assignment: a held story, one with unmet, undone
//! or abandoned dependencies; one story too many in a stage; a pin, a ceiling, a back-off or a
//! pause ignored; priority turned round, the order of stages ignored (the model); what is taken
//! not counted; a story gone before its worktree. Of facts: a lost run counted twice; a step's
//! number, an entry or a retry not counted; the number of a stray given again, a begun worktree
//! forgotten (the model); a late proof that does not end the hold; nothing undone; a wait that a
//! clock set back makes endless; two notices with one number.
//!
//! Two were not seen at first and have rules of their own since: an agent whose instances were
//! lowered below those that live, and a story told done again in the archive.

mod mind;
mod model;
mod rules;
#[path = "../seeded/mod.rs"]
mod seeded;
mod world;
