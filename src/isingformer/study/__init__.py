"""The paper's study: a grid of trainings, its records, tables, figures and report."""
