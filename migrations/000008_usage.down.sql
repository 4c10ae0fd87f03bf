DROP TABLE IF EXISTS usage_late, usage_marks, usage_days, usage_hours, usage_minutes, usage_reports;
